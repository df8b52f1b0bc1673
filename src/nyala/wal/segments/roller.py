"""Preallocation of the next segment, in the background (lane COMPUTE) while appends continue.

An error (a full disk) is kept in `error` and retried every second; only a round that does not fit into the
preallocated space waits for it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from nyala.env.files import Files
from nyala.env.tasks import Lane, Tasks
from nyala.wal.segments.allocator import FULL, SegmentAllocator
from nyala.wal.segments.segment import SegmentWriter

RETRY_MS = 1000

log = logging.getLogger(__name__)


class SegmentRoller:
    """Keeps at most one prepared segment. Used on the event loop only.

    Args:
        files: file system of the segments.
        tasks: runs the lane and the retry timer.
        allocator: creates segments.
        on_change: called when a segment is ready or an attempt failed.

    Attributes:
        error: why the log cannot grow now; None: it can.
        stopping: the log is closing; nothing waits any more.
    """

    def __init__(
        self,
        files: Files,
        tasks: Tasks,
        allocator: SegmentAllocator,
        on_change: Callable[[], None],
    ) -> None:
        self.error: OSError | None = None
        self.stopping = False
        self._files = files
        self._tasks = tasks
        self._allocator = allocator
        self._on_change = on_change
        self._ready: SegmentWriter | None = None
        self._attempt: asyncio.Task[object] | None = None
        self._closed = False
        self._retry_pending = False

    def start(self, sequence: int) -> None:
        """Start preallocating, unless that is in progress or done."""
        if self._ready is None and self._attempt is None and not self._closed:
            self._attempt = self._tasks.spawn(self._prepare(sequence), "wal-preallocate")

    @property
    def ready(self) -> bool:
        """True if a prepared segment exists."""
        return self._ready is not None

    @property
    def next_segment(self) -> SegmentWriter:
        """The prepared segment."""
        assert self._ready is not None, "no segment is ready"
        return self._ready

    def clear(self) -> None:
        """Forget the prepared segment: it was activated, or is unusable."""
        self._ready = None

    async def _prepare(self, sequence: int) -> None:
        while not self._closed:
            try:
                self._ready = await self._tasks.run(Lane.COMPUTE, self._allocator.create, sequence)
            except Exception as err:  # a full disk, or a bug: appends wait for the next attempt
                if isinstance(err, OSError):
                    log.error("preallocating log segment %d failed: %s", sequence, err)
                    self.error = err
                else:
                    log.error("preallocating log segment %d failed", sequence, exc_info=err)
                    self.error = OSError(f"preallocating log segment {sequence} failed: {err!r}")
                self._on_change()
                self._retry_pending = True
                await self._tasks.sleep_ms(RETRY_MS)
                self._retry_pending = False
            else:
                self.error = None
                break
        self._attempt = None
        self._on_change()

    async def extend(self, writer: SegmentWriter, end: int, freeing: Callable[[], bool]) -> None:
        """Wait until there is disk space for a round beyond the preallocated length.

        Args:
            writer: writer of the active segment.
            end: offset after the round.
            freeing: returns whether the round, or one queued behind it, allows the log to shrink.

        Raises:
            OSError: the disk failed, or is full while the log is closing.
        """
        while True:
            try:
                await self._tasks.run(Lane.DISK, self._allocator.extend, writer, end, freeing())
            except OSError as err:
                if err.errno not in FULL:
                    raise
                await self.wait_for_space(err)
            else:
                self.error = None
                return

    async def wait_for_space(self, err: OSError) -> None:
        """Wait until the next attempt to use a full disk. Raises its error while the log is closing."""
        if self.stopping:
            raise err
        log.error("the log waits for space on its disk: %s", err)
        self.error = err
        await self._tasks.sleep_ms(RETRY_MS)

    async def close(self) -> None:
        """Stop, and remove a prepared segment."""
        self._closed = True
        if self._attempt is not None:
            if self._retry_pending:
                self._attempt.cancel()
            await asyncio.gather(self._attempt, return_exceptions=True)
        if self._ready is not None:
            with contextlib.suppress(OSError):  # the next open removes placeholders too
                await self._tasks.run(Lane.DISK, self._ready.discard, self._files)
