"""A line of callers before one tablet, and who of them goes together. On the client's loop only."""

from collections import deque
from typing import NamedTuple

from nyala.client.cluster.tablet_cache import TabletPlace
from nyala.client.write.pending_call import Call
from nyala.common.ids import TableId

IN_FLIGHT = 2
"""Requests of one line under way: the next one travels while a server works on the one before.

It travels once it has as many callers as the one before: fewer would cost the servers as much, and would
come back as few."""


EARLY = 8
"""A request ends at the earliest deadline of its callers: the others lose at most 1/EARLY of their time.

It must not be tried any longer: one of its callers was told that the time is up."""


class Kind(NamedTuple):
    """Calls of one kind may share a request: same table and schema, op, columns."""

    table: TableId
    version: int
    op: int
    columns: tuple[str, ...]


Key = tuple[str, Kind]
"""A line's: tablet and kind."""


class Line:
    """Callers of one kind for one tablet.

    Attributes:
        tablet: where they go.
        waiting: in order of arrival.
        in_flight: requests under way.
        travelling: the callers in them.
    """

    __slots__ = ("in_flight", "tablet", "travelling", "waiting")

    def __init__(self, tablet: TabletPlace) -> None:
        self.tablet = tablet
        self.waiting: deque[Call] = deque()
        self.in_flight = self.travelling = 0

    @property
    def idle(self) -> bool:
        """Whether nobody is here."""
        return not self.waiting and not self.in_flight

    def depart(self, max_rows: int, max_bytes: int, now_us: int) -> list[Call]:
        """Take those who go together now from the head of the line; nobody if they had better wait."""
        if self.in_flight == IN_FLIGHT or len(self.waiting) < self.travelling:
            return []
        calls = self._first(max_rows, max_bytes, now_us)
        if calls:
            self.in_flight += 1
            self.travelling += len(calls)
        return calls

    def arrived(self, calls: list[Call]) -> None:
        """Their request has come to its end."""
        self.in_flight -= 1
        self.travelling -= len(calls)

    def _first(self, max_rows: int, max_bytes: int, now_us: int) -> list[Call]:
        calls: list[Call] = []
        rows = size = earliest = latest = 0
        while self.waiting:
            call = self.waiting[0]
            if call.over:  # gave up before it was sent
                self.waiting.popleft()
                continue
            rows, size = rows + call.batch.num_rows, size + call.size_bytes
            earliest = min(earliest or call.deadline_us, call.deadline_us)
            latest = max(latest, call.deadline_us)
            apart = latest - earliest > (latest - now_us) // EARLY
            if calls and (rows > max_rows or size > max_bytes or apart):
                break
            calls.append(self.waiting.popleft())
        return calls
