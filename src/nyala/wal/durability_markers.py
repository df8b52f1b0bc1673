"""Markers: records of nobody, added by a timer. A round with a marker is synced in any case.

Where each round is synced, one marker follows a while after the last: a record tells what was durable
before it, so the last ones are proven only by a later one. After the marker, damage to any entry is known
as damage; without it, it would look like a crash's torn tail.
Where rounds are not synced, a marker follows within `wal_sync_interval_ms`, and brings the sync.
"""

from collections.abc import Callable

from nyala.env.tasks import Tasks
from nyala.wal.format import NO_GROUP, RecordKind, draft
from nyala.wal.slots import Slot, SlotQueue, SlotState

IDLE_MS = 200
"""Time without a round after which a log is idle."""


class DurabilityMarkers:
    """Adds a marker to the queue after, or from time to time during, each busy time. Loop only.

    Args:
        tasks: for the timer.
        queue: where the marker waits, like any slot.
        wake: wakes the appender.
        interval_ms: from the first round without a sync to the marker; None: rounds are synced, the
            marker waits for a quiet log; 0: no markers.

    Attributes:
        count: added so far.
        stopped: no more are added.
    """

    def __init__(
        self, tasks: Tasks, queue: SlotQueue, wake: Callable[[], None], interval_ms: int | None
    ) -> None:
        self.count = 0
        self.stopped = False
        self._tasks = tasks
        self._queue = queue
        self._wake = wake
        self._interval_ms = interval_ms
        self._rounds = 0
        self._armed = False

    def round_done(self, slots: list[Slot]) -> None:
        """A round is acknowledged; unless it was the marker's own, one is due."""
        if self._interval_ms == 0 or all(slot.group is None for slot in slots):
            return
        self._rounds += 1
        if not self._armed and not self.stopped:
            self._armed = True
            self._tasks.spawn(self._mark(), "wal-marker")

    async def _mark(self) -> None:
        if self._interval_ms is not None:
            await self._tasks.sleep_ms(self._interval_ms)
        else:
            await self._quiet()
        self._armed = False
        if self.stopped:
            return
        marker = Slot(None)
        marker.drafts = [draft(RecordKind.MARKER, NO_GROUP)]
        marker.state = SlotState.READY
        self._queue.add(marker)
        self.count += 1
        self._wake()

    async def _quiet(self) -> None:
        seen = -1
        while not self.stopped and (seen != self._rounds or self._queue.pending_bytes):
            seen = self._rounds
            await self._tasks.sleep_ms(IDLE_MS)
