"""The appender: drains the queue, writes each round with one write and one sync, calls back in order.

The only writer of the active segment. After an I/O error of a write, a sync or a roll nothing is written or
acknowledged any more, because the content of the disk is unknown.
"""

import asyncio
import errno
import logging
from collections.abc import Iterator
from functools import partial

from nyala.env.clock import Clock
from nyala.env.files import Files
from nyala.env.tasks import Lane, Tasks
from nyala.wal.append.durability_markers import DurabilityMarkers
from nyala.wal.append.frame import frame
from nyala.wal.append.slots import Callback, Slot, SlotQueue
from nyala.wal.latency import Latency
from nyala.wal.log_state import LogState
from nyala.wal.segments.allocator import FULL, SegmentAllocator
from nyala.wal.segments.extent import ExtentFile
from nyala.wal.segments.format import RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, LogPosition
from nyala.wal.segments.roller import SegmentRoller
from nyala.wal.segments.segment import SegmentWriter
from nyala.wal.stats import Counts

log = logging.getLogger(__name__)


class Appender:
    """Appends rounds of slots, as a background task from `start` to `close`. Used on the event loop only.

    Args:
        files: file system of the segments.
        tasks: runs the task, the lane and the timers.
        clock: for the close time of segments; None: it is recorded as unknown.
        queue: slots to write.
        state: has the active segment; updated with each record, in order, once it is durable.
        allocator: creates the next segment.
        extent: updated at each roll and at close.
        sync_interval_ms: None: each round is synced before it is acknowledged; else the longest time from a
            round to its sync; 0: at the end of the segment. Terms, votes, and records that let the log
            shrink are always synced.
    """

    def __init__(
        self, files: Files, tasks: Tasks, clock: Clock | None, queue: SlotQueue,
        state: LogState, allocator: SegmentAllocator, extent: ExtentFile, sync_interval_ms: int | None,
    ) -> None:  # fmt: skip
        self.counts = Counts()
        self.latency = Latency(clock)
        self.failed: OSError | None = None
        self.refusal: OSError | None = None
        self.roller = SegmentRoller(files, tasks, allocator, self.wake)
        self.markers = DurabilityMarkers(tasks, queue, self.wake, sync_interval_ms)
        self._files = files
        self._tasks = tasks
        self._clock = clock
        self._queue = queue
        self._always = sync_interval_ms is None
        self._state = state
        self._extent = extent
        self._synced = LogPosition(state.active.segment.sequence, SEGMENT_HEADER_BYTES)
        self._wake = asyncio.Event()
        self._closing = False
        self._in_flight: list[Slot] = []
        self._task: asyncio.Task[object] | None = None

    def start(self) -> None:
        """Start draining the queue."""
        self._task = self._tasks.spawn(self._run(), "wal-appender")

    def wake(self) -> None:
        """Wake the appender: a slot or a segment is ready."""
        self._wake.set()

    def call_back(self, callback: Callback | None, err: OSError | None) -> None:
        """Schedule a callback on the loop, in the order of these calls."""
        if callback is not None:
            asyncio.get_running_loop().call_soon(callback, err)

    async def _run(self) -> None:
        try:
            await self._drain()
        except OSError as err:
            self._fail(err)
        except Exception as bug:
            # Top of the task: callers that wait for the log must be notified of a broken invariant too.
            self._fail(OSError(errno.EIO, f"the log's appender stopped: {bug!r}"))
            raise

    async def _drain(self) -> None:
        while self.failed is None:
            if self.roller.ready and self._full():
                await self._roll()
            slots = self._queue.drain()
            if slots:
                await self._round(slots)
            elif self._closing:
                return
            else:
                await self._wake.wait()
                self._wake.clear()

    async def _round(self, slots: list[Slot]) -> None:
        """Write and sync the drained slots as one round, which succeeds or fails as a whole."""
        self._in_flight = slots
        drafts = [d for slot in slots for d in slot.drafts]
        segment = self._state.active.segment
        at = LogPosition(segment.sequence, segment.end)
        buffers, end = frame(drafts, at, self._synced)
        if end > self._state.active.allocated_bytes:
            await self.roller.extend(self._state.active, end, partial(self._freeing, slots))
        sync = self._always or any(
            s.group is None or s.hard_state is not None or s.frees for s in slots
        )
        self.latency.round_started()
        await self._tasks.run(Lane.DISK, self._state.active.write, buffers, sync=sync)
        self.latency.round_ended()
        segment.end = end
        if sync:
            self._synced = LogPosition(segment.sequence, end)
        self.counts.round(len(slots), len(drafts), end - at.offset, synced=sync)
        for one in drafts:
            self._state.record_durable(one, at)
            at = LogPosition(at.sequence, at.offset + RECORD_HEADER_BYTES + len(one.payload))
        self._queue.done(slots)
        self._in_flight = []
        for slot in slots:
            self.call_back(slot.callback, None)
        if 2 * end >= self._state.active.preallocated_bytes:
            self.roller.start(segment.sequence + 1)
        self.markers.round_done(slots)

    def unfinished(self) -> Iterator[Slot]:
        """Yield the slots that are reserved and not yet durable, in order."""
        yield from self._in_flight
        yield from self._queue

    def _freeing(self, slots: list[Slot]) -> bool:
        """Return whether a slot of the round, or one queued behind it, allows the log to shrink."""
        return self._queue.freeing > 0 or any(slot.frees for slot in slots)

    def _full(self) -> bool:
        return self._state.active.segment.end >= self._state.active.preallocated_bytes

    async def _roll(self) -> None:
        """Seal the active segment and activate the next one; durable before anything is written to it."""
        full, following = self._state.active, self.roller.next_segment
        try:
            while full_disk := await self._tasks.run(
                Lane.DISK, self._swap, full, following, self._state.first
            ):
                await self.roller.wait_for_space(full_disk)
            self.roller.error = None
        except OSError:
            following.close()
            raise
        finally:
            self.roller.clear()
        self._state.rolled(following)
        self._synced = LogPosition(following.segment.sequence, SEGMENT_HEADER_BYTES)
        self.counts.rolls += 1

    def _swap(self, full: SegmentWriter, following: SegmentWriter, first: int) -> OSError | None:
        """Swap the segments; return an error, and do nothing, if there is no space for the footer."""
        try:
            full.reserve_footer()
        except OSError as err:
            if err.errno in FULL:
                return err
            raise
        full.seal(self._now_us(), self._synced)
        following.activate(self._files)
        start = LogPosition(following.segment.sequence, SEGMENT_HEADER_BYTES)
        self._extent.advance_end(start, first)
        return None

    def _now_us(self) -> int:
        return 0 if self._clock is None else self._clock.wall_us()

    def _fail(self, err: OSError) -> None:
        """Fail this round, all queued slots and all later ones."""
        log.error("the log in %s failed for good: %s", self._state.active.segment.path, err)
        self.failed = self.refusal = err
        self.markers.stopped = True
        self._queue.done(self._in_flight)
        for slot in (*self._in_flight, *self._queue.abandon()):
            self.call_back(slot.callback, err)

    async def close(self) -> None:
        """Write the ready slots, fail the others, seal the segment."""
        self._closing = self.markers.stopped = self.roller.stopping = True
        self.wake()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self.refusal = self.refusal or OSError(errno.ECANCELED, "the log is closed")
        for slot in self._queue.abandon():
            self.call_back(slot.callback, self.refusal)
        await self.roller.close()
        try:
            await self._tasks.run(Lane.DISK, self._finish)
        except OSError as err:
            log.warning("%s was not sealed: %s", self._state.active.segment.path, err)

    def _finish(self) -> None:
        if self.failed is None:
            self._state.active.seal(self._now_us(), self._synced)
            last = self._state.active.segment
            self._extent.advance_end(LogPosition(last.sequence, last.end), self._state.first)
        else:
            self._state.active.close()
