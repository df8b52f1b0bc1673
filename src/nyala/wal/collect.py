"""Removing the oldest segments when no group needs them; a last hard state is written anew first.

What a group still needs and no flush would let go of - entries that a dead member lacks, those of a replica
that has failed or has no leader - is written again at the log's end, as long as that is little beside the
log: then it pins nothing for long. Where it is much, the log grows to a few times of it.

Rules: one segment at a time, its removal synced before the next, so that a crash leaves no hole. A
segment that is being read stays.
"""

import asyncio
import logging
from collections.abc import Callable

from nyala.common.errors import BadChecksum, LogGap, Throttled, Unavailable
from nyala.common.ids import TabletId
from nyala.env.files import Files
from nyala.env.tasks import Lane, Tasks
from nyala.raft.messages import Entry
from nyala.wal.admission import Admission
from nyala.wal.extent import ExtentFile
from nyala.wal.index import EntryLocation
from nyala.wal.log_state import LogState
from nyala.wal.reader import read_runs
from nyala.wal.segment import Segment

MOVE_SHARE = 4
"""At most one part in so many of the log is written again for the sake of its oldest segment."""
MOVE_BYTES = 1 << 20
"""Of entries in memory at a time while they are moved, one at least."""

log = logging.getLogger(__name__)


class LogCollector:
    """Runs at most one collection at a time. Loop only.

    Args:
        files: where segments live.
        tasks: for the lanes.
        state: knows who needs what.
        extent: is told before a segment goes.
        admission: takes what is written again.
        room: returns how many bytes may be written again now.

    Attributes:
        removed: segments, since open.
        moved: entries that were written again, since open.
        unreadable: groups whose entries could not be read, and so not be moved, and why.
    """

    def __init__(
        self,
        files: Files,
        tasks: Tasks,
        state: LogState,
        extent: ExtentFile,
        admission: Admission,
        room: Callable[[], int],
    ) -> None:
        self.removed = 0
        self.moved = 0
        self.unreadable: dict[TabletId, Exception] = {}
        self._files = files
        self._tasks = tasks
        self._state = state
        self._extent = extent
        self._admission = admission
        self._room = room
        self._running = False

    async def run(self, keep_segments: int = 0) -> int:
        """Remove what nobody needs, down to so many segments; return how many went."""
        if self._running:
            return 0
        self._running = True
        before = self.removed
        closed = self._state.closed
        newest = closed[-1].sequence if closed else 0  # what is moved there meanwhile stays
        try:
            while len(closed) >= max(1, keep_segments) and closed[0].sequence <= newest:
                if not await self._step(closed[0]):
                    break
        except (Throttled, Unavailable, OSError) as err:
            log.warning("collecting log segments stopped, the next collection tries again: %s", err)
        finally:
            self._running = False
        return self.removed - before

    async def _step(self, oldest: Segment) -> bool:
        """Bring the oldest segment nearer to its end; return whether there may be more to do."""
        if oldest.readers:
            return False
        pinning = list(self._state.pinning())
        if pinning:
            return await self._move_all(oldest, pinning)
        groups = self._state.only_hard_states(oldest)
        if groups:
            return await self._rewrite_all(groups)
        self._state.drop_oldest()  # no new reader finds it
        await self._tasks.run(Lane.DISK, self._extent.advance_first, oldest.sequence + 1)
        await self._tasks.run(Lane.COMPUTE, self._remove, oldest.path)
        self._state.dropped()
        self.removed += 1
        return True

    def _remove(self, path: str) -> None:
        self._files.remove(path)
        self._files.sync_dir(path.rpartition("/")[0])

    async def _rewrite_all(self, groups: list[TabletId]) -> bool:
        """Append the last hard state of each group again; return whether all are durable."""
        loop = asyncio.get_running_loop()
        written: list[asyncio.Future[OSError | None]] = []
        for group in groups:
            done = loop.create_future()
            self._admission.rewrite(group, done.set_result)
            written.append(done)
        return not any(await asyncio.gather(*written))

    async def _move_all(self, oldest: Segment, groups: list[TabletId]) -> bool:
        """Write again what groups need of a segment; return whether none needs it any more."""
        state = self._state
        if not all(map(state.anchors.movable, groups)):
            return False
        size = sum(map(state.needed_bytes, groups))
        if size * MOVE_SHARE > state.size_bytes() or size > self._room():
            return False
        for group in groups:
            if state.needs(group, oldest) and not await self._move(group):
                return False
            if state.needs(group, oldest):
                return False  # its anchor has moved back meanwhile
            state.release(oldest, group)
        return True

    async def _move(self, group: TabletId) -> bool:
        """Write all that a group needs again, as one run; return whether it is durable."""
        places, begins = self._state.needed(group), True
        while places:
            taken = _some(places)
            del places[: len(taken)]
            try:
                entries = await self._read(group, taken)
            except (BadChecksum, LogGap) as err:
                log.error("entries that %s needs cannot be read: %s", group, err)
                self.unreadable[group] = err
                return False
            done = asyncio.get_running_loop().create_future()
            if not self._admission.move(
                group, entries, len(places), done.set_result, begins=begins
            ):
                return False
            if await done is not None:
                return False
            begins = False
            self.moved += len(entries)
        return True

    async def _read(self, group: TabletId, places: list[EntryLocation]) -> list[Entry]:
        runs = self._state.by_segment(places)
        return await read_runs(self._tasks, self._files, group, runs)


def _some(places: list[EntryLocation]) -> list[EntryLocation]:
    """Return the first places, one at least, that are read at a time."""
    room, taken = MOVE_BYTES, 0
    for place in places:
        room -= place.length
        if taken and room < 0:
            break
        taken += 1
    return places[:taken]
