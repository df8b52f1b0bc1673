"""Removing the oldest segments when no group needs them; a last hard state is written anew first.

Rules: one segment at a time, its removal synced before the next, so that a crash leaves no hole. A
segment that is being read stays.
"""

import asyncio
import logging
from collections.abc import Callable

from nyala.common.errors import Throttled, Unavailable
from nyala.common.ids import TabletId
from nyala.env.files import Files
from nyala.env.tasks import Lane, Tasks
from nyala.wal.extent import ExtentFile
from nyala.wal.ledger import Ledger
from nyala.wal.segment import Segment
from nyala.wal.slots import Callback

log = logging.getLogger(__name__)


class Collector:
    """Runs at most one collection at a time. Loop only.

    Args:
        files: where segments live.
        tasks: for the lane.
        ledger: knows who needs what.
        extent: is told before a segment goes.
        rewrite: appends a group's hard state again; may raise Throttled or Unavailable.
    """

    def __init__(
        self,
        files: Files,
        tasks: Tasks,
        ledger: Ledger,
        extent: ExtentFile,
        rewrite: Callable[[TabletId, Callback], None],
    ) -> None:
        self.removed = 0
        self._files = files
        self._tasks = tasks
        self._ledger = ledger
        self._extent = extent
        self._rewrite = rewrite
        self._running = False

    async def run(self, keep_segments: int = 0) -> int:
        """Remove what nobody needs, down to so many segments; return how many went."""
        if self._running:
            return 0
        self._running = True
        before = self.removed
        closed = self._ledger.closed
        try:
            while len(closed) >= max(1, keep_segments) and await self._step(closed[0]):
                pass
        except OSError as err:
            log.warning("collecting log segments stopped, the next collection tries again: %s", err)
        finally:
            self._running = False
        return self.removed - before

    async def _step(self, oldest: Segment) -> bool:
        """Bring the oldest segment nearer to its end; return whether there may be more to do."""
        if oldest.readers or any(self._ledger.pinning()):
            return False
        groups = self._ledger.only_hard_states(oldest)
        if groups:
            return await self._rewrite_all(groups)
        self._ledger.index.drop_before(oldest.sequence + 1)  # no new reader finds it
        await self._tasks.run(Lane.DISK, self._extent.begin_at, oldest.sequence + 1)
        await self._tasks.run(Lane.COMPUTE, self._remove, oldest.path)
        self._ledger.drop_oldest()
        self.removed += 1
        return True

    def _remove(self, path: str) -> None:
        self._files.remove(path)
        self._files.sync_dir(path.rpartition("/")[0])

    async def _rewrite_all(self, groups: list[TabletId]) -> bool:
        """Append the last hard state of each group again; return whether all are durable."""
        loop = asyncio.get_running_loop()
        written: list[asyncio.Future[OSError | None]] = []
        try:
            for group in groups:
                written.append(loop.create_future())
                self._rewrite(group, written[-1].set_result)
        except (Throttled, Unavailable):
            written.pop()  # the queue is full, or the log closes: another time
            await asyncio.gather(*written)
            return False
        return not any(await asyncio.gather(*written))
