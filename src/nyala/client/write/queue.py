"""Queue of small writes to one tablet, and the choice of the calls that share a request.

Used on the client's loop only.
"""

from collections import deque
from typing import NamedTuple

from nyala.client.cluster.tablet_cache import TabletLocation
from nyala.client.request_queue import RequestQueue
from nyala.client.write.pending_call import Call
from nyala.common.ids import TableId

DEADLINE_SHARE = 8
"""Divisor: a request ends at the earliest deadline of its calls, and the others lose at most 1/EARLY of their
time.

It is not retried after that deadline, as the call with that deadline has already failed.
"""


class CallKind(NamedTuple):
    """Calls of one kind may share a request: same table and schema version, op and columns."""

    table: TableId
    version: int
    op: int
    columns: tuple[str, ...]


Key = tuple[str, CallKind]
"""Key of a queue: tablet id and kind of call."""


class CallQueue:
    """Calls of one kind for one tablet.

    Args:
        tablet: tablet of the rows.

    Attributes:
        tablet: as given; replaced when the tablet's replicas are looked up again.
        requests: the calls that wait and those in flight.
    """

    __slots__ = ("requests", "tablet")

    def __init__(self, tablet: TabletLocation) -> None:
        self.tablet = tablet
        self.requests: RequestQueue[Call] = RequestQueue(fill=True)

    def take_batch(self, max_rows: int, max_bytes: int, now_us: int) -> list[Call]:
        """Take the calls of the next request; see `RequestQueue.take_batch`.

        Args:
            max_rows: largest number of rows of a request, one call at least.
            max_bytes: largest size of a request, one call at least.
            now_us: monotonic time.

        Returns:
            The calls; empty: no request may be sent now.
        """

        def first(waiting: deque[Call]) -> list[Call]:
            return _first(waiting, max_rows, max_bytes, now_us)

        return self.requests.take_batch(first)


def _first(waiting: deque[Call], max_rows: int, max_bytes: int, now_us: int) -> list[Call]:
    calls: list[Call] = []
    rows = size = earliest = latest = 0
    while waiting:
        call = waiting[0]
        if call.over:  # timed out before it was sent
            waiting.popleft()
            continue
        rows, size = rows + call.batch.num_rows, size + call.size_bytes
        earliest = min(earliest or call.deadline_us, call.deadline_us)
        latest = max(latest, call.deadline_us)
        deadlines_differ = latest - earliest > (latest - now_us) // DEADLINE_SHARE
        if calls and (rows > max_rows or size > max_bytes or deadlines_differ):
            break
        calls.append(waiting.popleft())
    return calls
