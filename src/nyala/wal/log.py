"""The write-ahead log of one data directory: the face over queue, appender, index and collection.

One physical log carries the entries and hard states of every group of the process, so that one sync
serves all of them; order, anchors, truncation and collection are per group. Everything here runs on
the loop; files are touched in lanes only. The bytes: docs/internals/formats-wal.md.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace

from nyala.common.errors import InvalidArgument
from nyala.common.ids import TabletId
from nyala.env.clock import Clock
from nyala.env.files import Files
from nyala.env.tasks import Lane, Tasks
from nyala.raft.messages import Entry, HardState
from nyala.wal.admission import Admission
from nyala.wal.anchors import NOTHING, Anchor
from nyala.wal.appender import Appender
from nyala.wal.collect import LogCollector
from nyala.wal.extent import Extent, ExtentFile
from nyala.wal.format import SEGMENT_HEADER_BYTES, LogPosition, group_bytes
from nyala.wal.latency import Latency
from nyala.wal.log_state import LogState
from nyala.wal.reader import read_runs
from nyala.wal.recovered import Damage, RecoveredGroup, Recovery, TornTail, fill_bounds
from nyala.wal.recovery import recover
from nyala.wal.segment import PINNED, SegmentWriter
from nyala.wal.segment_allocator import SegmentAllocator
from nyala.wal.slots import Callback, Slot, SlotQueue
from nyala.wal.stats import WalStats

MAX_SEGMENT_BYTES = 1 << 30
"""Offsets are 32 bits, and a segment may pass its size by what the queue holds."""


def _begin(
    files: Files,
    path: str,
    server_uuid: str,
    now_us: int,
    allocator: SegmentAllocator,
    note: ExtentFile,
) -> tuple[Recovery, SegmentWriter]:
    """Recover what is there and make the segment to append to. Blocks."""
    files.make_dir(path)
    note.load()
    recovery = recover(files, path, server_uuid, now_us, note.extent)
    at = recovery.next_sequence
    first = recovery.segments[0].sequence if recovery.segments else at
    made = Extent(first, LogPosition(at, SEGMENT_HEADER_BYTES))
    if recovery.missing:  # new segments must not hide it
        note.save(replace(note.extent or made, missing=True))
    active = allocator.first(at)
    active.activate(files)
    if not recovery.missing:
        note.save(made)
    return recovery, active


class Wal:
    """The log. Made by `open`; loop only.

    Attributes:
        damage: what `open` found damaged, also where no group is affected.
        torn: the torn tail that `open` cut off; None: the log ended cleanly.
        unattributed: damage that may affect groups without any record left here; None: none. See
            `accept_damage`.
    """

    def __init__(
        self,
        files: Files,
        tasks: Tasks,
        clock: Clock | None,
        recovery: Recovery,
        active: SegmentWriter,
        allocator: SegmentAllocator,
        note: ExtentFile,
        queue_bytes: int,
        sync_interval_ms: int | None,
    ) -> None:
        self.damage: tuple[Damage, ...] = tuple(recovery.damage)
        self.torn: TornTail | None = recovery.torn
        self.unattributed: Damage | None = recovery.unattributed
        self._note = note
        self._files = files
        self._tasks = tasks
        self._state = LogState(recovery, active)
        self._queue = SlotQueue(queue_bytes)
        self._appender = Appender(
            files, tasks, clock, self._queue, self._state, allocator, note, sync_interval_ms
        )
        hard_states = {g: r.hard_state for g, r in recovery.groups.items() if r.hard_state}
        self._admission = Admission(self._queue, self._appender, self._state, hard_states)
        self._allocator = allocator
        self._corrupt = {g for g, own in recovery.groups.items() if own.corrupt is not None}
        self._collector = LogCollector(files, tasks, self._state, note, self._admission, self._room)

    @classmethod
    async def open(
        cls,
        files: Files,
        tasks: Tasks,
        directory: str,
        *,
        server_uuid: str,
        segment_bytes: int,
        queue_bytes: int,
        sync: bool = True,
        sync_interval_ms: int = 0,
        reserve_bytes: int = 0,
        cleanup_bytes: int = 0,
        clock: Clock | None = None,
    ) -> tuple["Wal", dict[TabletId, RecoveredGroup]]:
        """Recover the log and start a new segment.

        Args:
            files: where it lives.
            tasks: for the appender and the lanes.
            directory: the data directory; segments live in `<directory>/wal/`.
            server_uuid: must be that of the server which wrote the log.
            segment_bytes: preallocated length of a segment.
            queue_bytes: limit of what is reserved and not yet durable.
            sync: False: acknowledge before the sync; a power cut may then lose a tail of the entries.
            sync_interval_ms: without `sync`: so long after a round it is synced; 0: with its segment.
            reserve_bytes: free space that the log leaves on its disk; below, it is full.
            cleanup_bytes: of that, so much may be used for what lets the log shrink.
            clock: tells the close time of segments; None: it is left unknown.

        Returns:
            The log, and by group what was in it. A group whose `corrupt` is set must not go on.

        Raises:
            Corrupt: the log is another server's. BadVersion: it has a format of another version.
            InvalidArgument: an argument is out of range. OSError: the disk failed or has no byte left.
        """
        if not SEGMENT_HEADER_BYTES < segment_bytes <= MAX_SEGMENT_BYTES:
            raise InvalidArgument(f"segment_bytes {segment_bytes} is outside 49..2**30")
        if not 0 < queue_bytes <= MAX_SEGMENT_BYTES:
            raise InvalidArgument(f"queue_bytes {queue_bytes} is outside 1..2**30")
        group_bytes(server_uuid)
        path = f"{directory}/wal"
        now_us = 0 if clock is None else clock.wall_us()
        allocator = SegmentAllocator(
            files, path, server_uuid, segment_bytes, reserve_bytes, cleanup_bytes
        )
        note = ExtentFile(files, directory)
        found = await tasks.run(
            Lane.DISK, _begin, files, path, server_uuid, now_us, allocator, note
        )
        interval_ms = None if sync else sync_interval_ms
        wal = cls(files, tasks, clock, *found, allocator, note, queue_bytes, interval_ms)
        wal._appender.start()
        return wal, found[0].groups

    async def accept_damage(self) -> None:
        """Record that the `unattributed` damage is handled: the affected groups are recorded elsewhere.

        Until this returns, each start reports the damage again.

        Raises:
            OSError: not noted.
        """
        end = LogPosition(self._state.active.segment.sequence, SEGMENT_HEADER_BYTES)
        await self._tasks.run(Lane.DISK, self._note.save, Extent(self._state.first, end))

    def reserve(
        self, group: TabletId, entries: Sequence[Entry], hard_state: HardState | None
    ) -> Slot:
        """Fix the place in the log of a hard state and of the entries that follow it.

        What is reserved first stands first on disk and is called back first, whatever the order of
        `append_async`. Every reserved slot must be handed in: later ones wait for it.

        Args:
            group: whose they are.
            entries: contiguous; the first at most one after the group's last; what it overlaps is
                replaced from there on.
            hard_state: None: unchanged.

        Raises:
            Throttled: queue or disk is full. TooLarge: an entry is. Unavailable: the log is closed.
            All of them before anything was reserved.
        """
        return self._admission.reserve(group, entries, hard_state)

    def append_async(self, slot: Slot, callback: Callback) -> None:
        """Serialise a reserved slot and let the appender have it.

        Args:
            slot: from `reserve`; handed in once.
            callback: called on the loop, never from here: with None once the slot is durable, with
                the OSError after which it, and everything later, never will be.
        """
        self._admission.append_async(slot, callback)

    async def read(self, group: TabletId, first_index: int, max_bytes: int) -> list[Entry]:
        """Return durable entries from an index on, for a follower that fell behind.

        Args:
            group: whose entries.
            first_index: of the first.
            max_bytes: of records; at least one entry is returned if there is one.

        Raises:
            LogGap: they have been collected. BadChecksum: a record is damaged. OSError.
        """
        runs = self._state.locate(group, first_index, max_bytes)
        return await read_runs(self._tasks, self._files, group, runs)

    def set_anchor(
        self,
        group: TabletId,
        first_needed_index: int,
        own_index: int | None = None,
        *,
        movable: bool = False,
    ) -> None:
        """Keep the group's entries from an index on. Without an anchor it keeps all it has.

        Args:
            group: whose entries.
            first_needed_index: of the first that is kept.
            own_index: of the first that the replica here needs, the ones before are kept for others;
                None: that is the first one.
            movable: no flush lets go of them: they may be written again at the log's end.
        """
        own = first_needed_index if own_index is None else own_index
        self._state.anchors.set(group, Anchor(first_needed_index, own, movable))

    def abandon(self, group: TabletId) -> None:
        """Nobody flushes the group any more, its replica has failed: keep what it needs, wherever.

        Of a corrupt group the files stay as they are: they say that it is.
        """
        first, movable = self._state.anchors.first_needed(group), group not in self._corrupt
        self._state.anchors.set(group, Anchor(first, PINNED, movable))

    def release(self, group: TabletId) -> None:
        """Keep nothing of a group that is known elsewhere never to go on from here."""
        self._state.anchors.set(group, NOTHING)
        self._collector.unreadable.pop(group, None)

    def held_bytes(self) -> dict[TabletId, int]:
        """Return how much of the log stays by group for other members, or for replicas that failed."""
        return self._state.held_bytes()

    @property
    def unreadable(self) -> dict[TabletId, Exception]:
        """The groups that keep the oldest segment with entries that cannot be read, and why."""
        return self._collector.unreadable

    def logged(self, group: TabletId) -> RecoveredGroup:
        """Return what the log has of a group, but for its hard state and configurations."""
        return fill_bounds(self._state.index, group, RecoveredGroup())

    def _room(self) -> int:
        """Return how many bytes may be written again for the sake of collection."""
        full = self._appender.roller.error is not None
        return self._allocator.cleanup_bytes // 4 if full else 1 << 62

    def forget(self, group: TabletId, callback: Callback | None = None) -> None:
        """Void all earlier records of a group whose replica is deleted.

        Durable with the next round (`callback`); repeated at start for groups that no replica claims.

        Raises:
            Throttled, Unavailable: as `reserve`.
        """

        def forgotten(err: OSError | None) -> None:
            self._collector.unreadable.pop(group, None)  # a replica that comes later is another one
            if callback is not None:
                callback(err)

        self._admission.forget(group, forgotten)
        self._state.anchors.drop(group)

    def collect(self, keep_segments: int = 0) -> asyncio.Task[object]:
        """Start to remove the oldest segments that nobody needs; awaited, it tells how many.

        Args:
            keep_segments: so many stay in any case, the active one included: for followers that may
                turn out to be slow.
        """
        return self._tasks.spawn(self._collector.run(keep_segments), "wal-collect")

    def stats(self) -> WalStats:
        """Return the log in numbers."""
        counts, state = self._appender.counts, self._state
        return WalStats(
            **asdict(counts),
            markers=self._appender.markers.count,
            collected=self._collector.removed,
            moved=self._collector.moved,
            pending_bytes=self._queue.pending_bytes,
            segments=len(state.closed) + 1,
            pinned_by=tuple(state.pinning()),
            disk_error=self._appender.roller.error,
        )

    @property
    def latency(self) -> Latency:
        """Latency of the log's disk per round."""
        return self._appender.latency

    @property
    def failed(self) -> OSError | None:
        """The I/O error after which nothing is acknowledged any more; None: all is well."""
        return self._appender.failed

    async def close(self) -> None:
        """Write what is ready, fail what is only reserved, seal the segment. Durable on return."""
        if not self._admission.closed:
            self._admission.closed = True
            await self._appender.close()
