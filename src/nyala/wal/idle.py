"""The marker of an idle log: a while after the last round, one record that proves the tail durable.

A record tells what was durable before it, so the last ones are proven only by a later one. After the
marker, damage to any entry is known as damage; without it, it would look like a crash's torn tail.
"""

from collections.abc import Callable

from nyala.env.tasks import Tasks
from nyala.wal.format import NO_GROUP, Kind, draft
from nyala.wal.slots import Slot, SlotQueue, SlotState

IDLE_MS = 200
"""How long without a round makes a log idle."""


class IdleMarker:
    """Adds one marker to the queue after each busy time. Loop only.

    Args:
        tasks: for the timer.
        queue: where the marker waits, like any slot.
        wake: wakes the appender.

    Attributes:
        markers: added so far.
        stopped: no more are added.
    """

    def __init__(self, tasks: Tasks, queue: SlotQueue, wake: Callable[[], None]) -> None:
        self.markers = 0
        self.stopped = False
        self._tasks = tasks
        self._queue = queue
        self._wake = wake
        self._rounds = 0
        self._armed = False

    def round_done(self, slots: list[Slot]) -> None:
        """A round is durable; unless it was the marker's own, wait for quiet."""
        if all(slot.group is None for slot in slots):
            return
        self._rounds += 1
        if not self._armed and not self.stopped:
            self._armed = True
            self._tasks.spawn(self._mark(), "wal-idle")

    async def _mark(self) -> None:
        seen = -1
        while seen != self._rounds or self._queue.pending_bytes:
            seen = self._rounds
            await self._tasks.sleep_ms(IDLE_MS)
            if self.stopped:
                return
        self._armed = False
        marker = Slot(None)
        marker.drafts = [draft(Kind.MARKER, NO_GROUP)]
        marker.state = SlotState.READY
        self._queue.add(marker)
        self.markers += 1
        self._wake()
