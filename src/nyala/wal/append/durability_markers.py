"""Markers: records without a group, added by a timer. A round with a marker is always synced.

If each round is synced, one marker follows the last round after a pause: each record stores the position that
was durable before it, so the last records are proven durable only by a later one. With the marker, damage to
any entry is recognised as damage; without it, it would look like the torn tail of a crash. If rounds are not
synced, a marker follows within `wal_sync_interval_ms` and triggers the sync.
"""

from collections.abc import Callable

from nyala.env.tasks import Tasks
from nyala.wal.append.slots import Slot, SlotQueue, SlotState
from nyala.wal.segments.format import NO_GROUP, RecordKind, draft

IDLE_MS = 200
"""Time in milliseconds without a round after which the log is idle."""


class DurabilityMarkers:
    """Adds markers to the queue after, or during, periods of activity. Used on the event loop only.

    Args:
        tasks: runs the timer.
        queue: to which markers are added, like any slot.
        wake: wakes the appender.
        interval_ms: from the first unsynced round to the marker; None: rounds are synced, the marker waits
            until the log is idle; 0: no markers.

    Attributes:
        count: number of markers added.
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
        """Schedule a marker after an acknowledged round, unless the round was the marker's own."""
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
            await self._wait_idle()
        self._armed = False
        if self.stopped:
            return
        marker = Slot(None)
        marker.drafts = [draft(RecordKind.MARKER, NO_GROUP)]
        marker.state = SlotState.READY
        self._queue.add(marker)
        self.count += 1
        self._wake()

    async def _wait_idle(self) -> None:
        seen = -1
        while not self.stopped and (seen != self._rounds or self._queue.pending_bytes):
            seen = self._rounds
            await self._tasks.sleep_ms(IDLE_MS)
