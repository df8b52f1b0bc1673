"""Collection: removal of the oldest segments when no group needs them; a last hard state is rewritten first.

Entries that a group still needs and that no flush releases (entries that a dead member lacks, those of a
replica that has failed or has no leader) are rewritten at the end of the log if they are small relative to
the log; so they do not retain old segments. If they are large, the log grows to a few times their size.

One segment is removed at a time, durably before the next, so that a crash leaves no gap. A segment that is
being read stays.
"""

import asyncio
import logging
from collections.abc import Callable

from nyala.common.errors import BadChecksum, LogGap, Throttled, Unavailable
from nyala.common.ids import TabletId
from nyala.env.files import Files
from nyala.env.tasks import Lane, Tasks
from nyala.raft.messages import Entry
from nyala.wal.append.admission import Admission
from nyala.wal.index import EntryLocation
from nyala.wal.log_state import LogState
from nyala.wal.reader import read_runs
from nyala.wal.segments.extent import ExtentFile
from nyala.wal.segments.segment import Segment

MOVE_SHARE = 4
"""Largest share of the log, as a divisor, that is rewritten to release its oldest segment."""
MOVE_BYTES = 1 << 20
"""Limit, in bytes, of the entries in memory while they are rewritten; at least one entry."""

log = logging.getLogger(__name__)


class LogCollector:
    """Collects segments, at most one collection at a time. Used on the event loop only.

    Args:
        files: file system of the segments.
        tasks: runs the lanes.
        state: has the anchors and segments.
        extent: updated before a segment is removed.
        admission: accepts rewritten records.
        room: returns the number of bytes that may be rewritten now.

    Attributes:
        removed: number of segments removed since open.
        moved: number of entries rewritten since open.
        unreadable: groups whose entries could not be read, and so not be rewritten, with the error.
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
        self._incomplete: dict[TabletId, None] = {}  # groups whose last run is not complete

    async def run(self, keep_segments: int = 0) -> int:
        """Remove unneeded segments, down to `keep_segments`; return the number removed."""
        if self._running:
            return 0
        self._running = True
        before = self.removed
        closed = self._state.closed
        newest = closed[-1].sequence if closed else 0  # rewritten entries go to later segments
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
        """Take one step towards removing the oldest segment; return whether to continue."""
        if oldest.readers:
            return False
        pinning = list(self._state.pinning())
        if pinning:
            return await self._move_all(oldest, pinning)
        groups = self._state.only_hard_states(oldest)
        if groups:
            return await self._rewrite_all(groups)
        self._state.drop_oldest()  # new readers do not find it any more
        await self._tasks.run(Lane.DISK, self._extent.advance_first, oldest.sequence + 1)
        await self._tasks.run(Lane.COMPUTE, self._remove, oldest.path)
        self._state.dropped()
        self.removed += 1
        return True

    def _remove(self, path: str) -> None:
        self._files.remove(path)
        self._files.sync_dir(path.rpartition("/")[0])

    async def _rewrite_all(self, groups: list[TabletId]) -> bool:
        """Rewrite the last hard state of each group; return whether all are durable.

        A group that is being forgotten has none; the record that voids it precedes what is rewritten here.
        """
        loop = asyncio.get_running_loop()
        written: list[asyncio.Future[OSError | None]] = []
        for group in groups:
            done = loop.create_future()
            if self._admission.rewrite(group, done.set_result):
                written.append(done)
        return bool(written) and not any(await asyncio.gather(*written))

    async def _move_all(self, oldest: Segment, groups: list[TabletId]) -> bool:
        """Rewrite the entries of a segment that groups need; return whether no group needs it any more."""
        state = self._state
        if not all(map(state.anchors.movable, groups)):
            return False
        size = sum(map(state.needed_bytes, groups))
        if size * MOVE_SHARE > state.size_bytes() or size > self._room():
            return False
        for group in groups:
            # Recovery ignores an incomplete run: the originals of its entries are still needed.
            due = state.needs(group, oldest) or group in self._incomplete
            if due and not await self._move(group):
                return False
            if state.needs(group, oldest):
                return False  # its anchor has moved back meanwhile
            state.release(oldest, group)
        return True

    async def _move(self, group: TabletId) -> bool:
        """Rewrite all entries that a group needs, as one run; return whether they are durable."""
        places, begins = self._state.needed(group), True
        self._incomplete[group] = None
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
        del self._incomplete[group]
        return True

    async def _read(self, group: TabletId, places: list[EntryLocation]) -> list[Entry]:
        runs = self._state.by_segment(places)
        return await read_runs(self._tasks, self._files, group, runs)


def _some(places: list[EntryLocation]) -> list[EntryLocation]:
    """Return the first locations, at least one, that are read in one batch."""
    room, taken = MOVE_BYTES, 0
    for place in places:
        room -= place.length
        if taken and room < 0:
            break
        taken += 1
    return places[:taken]
