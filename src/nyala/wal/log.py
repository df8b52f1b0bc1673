"""The write-ahead log of one data directory: facade of queue, appender, index and collection.

One physical log has the entries and hard states of all groups of the process, so that one sync serves all of
them; order, anchors, truncation and collection are per group. Everything here runs on the event loop; files
are accessed in lanes only. Format: docs/internals/formats-wal.md.
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
from nyala.wal.anchors import NOTHING, Anchor
from nyala.wal.append.admission import Admission
from nyala.wal.append.appender import Appender
from nyala.wal.append.slots import Callback, Slot, SlotQueue
from nyala.wal.collect import LogCollector
from nyala.wal.latency import Latency
from nyala.wal.log_state import LogState
from nyala.wal.reader import read_runs
from nyala.wal.recovery.opening import recover
from nyala.wal.recovery.recovered import Damage, RecoveredGroup, Recovery, TornTail, fill_bounds
from nyala.wal.segments.allocator import SegmentAllocator
from nyala.wal.segments.extent import Extent, ExtentFile
from nyala.wal.segments.format import SEGMENT_HEADER_BYTES, LogPosition, group_bytes
from nyala.wal.segments.segment import PINNED, SegmentWriter
from nyala.wal.stats import WalStats

MAX_SEGMENT_BYTES = 1 << 30
"""Maximum of `segment_bytes`: offsets have 32 bits, and a segment may exceed its size by the queue's."""


def _begin(
    files: Files,
    path: str,
    server_uuid: str,
    now_us: int,
    allocator: SegmentAllocator,
    note: ExtentFile,
) -> tuple[Recovery, SegmentWriter]:
    """Recover the log and create the segment to append to. Blocks."""
    files.make_dir(path)
    note.load()
    recovery = recover(files, path, server_uuid, now_us, note.extent)
    at = recovery.next_sequence
    first = recovery.segments[0].sequence if recovery.segments else at
    made = Extent(first, LogPosition(at, SEGMENT_HEADER_BYTES))
    if recovery.missing:  # new segments must not hide the loss
        note.save(replace(note.extent or made, missing=True))
    active = allocator.first(at)
    active.activate(files)
    if not recovery.missing:
        note.save(made)
    return recovery, active


class Wal:
    """The write-ahead log; created by `open`, used on the event loop only.

    Attributes:
        damage: found by `open`, also if it affects no group.
        torn: the torn tail that `open` truncated; None: the log ended cleanly.
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
            files: the file system.
            tasks: runs the appender and the lanes.
            directory: the data directory; segments are in `<directory>/wal/`.
            server_uuid: must be that of the server which wrote the log.
            segment_bytes: preallocated length of a segment.
            queue_bytes: limit of records that are reserved and not yet durable.
            sync: False: acknowledge before the sync; a power failure may then lose the last entries.
            sync_interval_ms: without `sync`: longest time from a round to its sync; 0: at the end of the
                segment.
            reserve_bytes: free space that the log leaves on its disk.
            cleanup_bytes: part of it that may be used by records that allow the log to shrink.
            clock: for the close time of segments; None: it is recorded as unknown.

        Returns:
            The log, and its content by group. A group with `corrupt` set must not continue from it.

        Raises:
            Corrupt: the log belongs to another server. BadVersion: it has an unknown format version.
            InvalidArgument: an argument is out of range. OSError: the disk failed or is full.
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
            OSError: it was not recorded.
        """
        end = LogPosition(self._state.active.segment.sequence, SEGMENT_HEADER_BYTES)
        await self._tasks.run(Lane.DISK, self._note.save, Extent(self._state.first, end))

    def reserve(
        self, group: TabletId, entries: Sequence[Entry], hard_state: HardState | None
    ) -> Slot:
        """Reserve the next position in the log for a hard state and the entries that follow it.

        Slots are written and called back in the order of their reservation, whatever the order of
        `append_async`. Every reserved slot must be passed to `append_async`: later ones wait for it.

        Args:
            group: id of the Raft group.
            entries: contiguous; the first at most one after the group's last; overlapping entries are
                replaced.
            hard_state: None: unchanged.

        Raises:
            Throttled: queue or disk is full. TooLarge: an entry is. Unavailable: the log is closed. In each
                case nothing was reserved.
        """
        return self._admission.reserve(group, entries, hard_state)

    def append_async(self, slot: Slot, callback: Callback) -> None:
        """Serialise a reserved slot and pass it to the appender.

        Args:
            slot: from `reserve`; passed in once.
            callback: called on the loop, never from within this call: with None once the slot is durable, or
                with the OSError after which neither it nor any later slot will be.
        """
        self._admission.append_async(slot, callback)

    async def read(self, group: TabletId, first_index: int, max_bytes: int) -> list[Entry]:
        """Return durable entries from an index on, for a follower that is behind.

        Args:
            group: id of the Raft group.
            first_index: index of the first entry.
            max_bytes: limit of the records; at least one entry is returned if there is one.

        Raises:
            LogGap: they have been collected. BadChecksum: a record is damaged. OSError: a file cannot be
                read.
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
        """Retain the group's entries from an index on. Without an anchor all its entries are retained.

        Args:
            group: id of the Raft group.
            first_needed_index: index of the first entry to retain.
            own_index: index of the first entry that the local replica needs; earlier ones are retained for
                other members; None: `first_needed_index`.
            movable: no flush releases the entries: they may be rewritten at the end of the log.
        """
        own = first_needed_index if own_index is None else own_index
        self._state.anchors.set(group, Anchor(first_needed_index, own, movable))

    def abandon(self, group: TabletId) -> None:
        """Retain the entries that a group needs although nothing flushes it any more: its replica has failed.

        The segments of a corrupt group stay as they are, because they are the evidence.
        """
        first, movable = self._state.anchors.first_needed(group), group not in self._corrupt
        self._state.anchors.set(group, Anchor(first, PINNED, movable))

    def release(self, group: TabletId) -> None:
        """Release all entries of a group whose replica will never continue from this log."""
        self._state.anchors.set(group, NOTHING)
        self._collector.unreadable.pop(group, None)

    def anchors(self) -> dict[TabletId, Anchor]:
        """Return the anchors of all groups; of one without an anchor all entries are retained."""
        return self._state.anchors.listed()

    def held_bytes(self) -> dict[TabletId, int]:
        """Return, by group, the bytes retained for other members or for failed replicas."""
        return self._state.held_bytes()

    @property
    def unreadable(self) -> dict[TabletId, Exception]:
        """Groups that retain the oldest segment with entries that cannot be read, with the error."""
        return self._collector.unreadable

    def logged(self, group: TabletId) -> RecoveredGroup:
        """Return the content of the log for a group, without hard state and configurations."""
        return fill_bounds(self._state.index, group, RecoveredGroup())

    def _room(self) -> int:
        """Return the number of bytes that collection may rewrite now."""
        full = self._appender.roller.error is not None
        return self._allocator.cleanup_bytes // 4 if full else 1 << 62

    def forget(self, group: TabletId, callback: Callback | None = None) -> None:
        """Void all earlier records of a group whose replica is deleted.

        Durable with the next round (`callback`); repeated at start for groups without a replica.

        Raises:
            Throttled, Unavailable: as `reserve`.
        """

        def forgotten(err: OSError | None) -> None:
            self._collector.unreadable.pop(group, None)  # a later replica is a new one
            if callback is not None:
                callback(err)

        self._admission.forget(group, forgotten)
        self._state.anchors.drop(group)

    def collect(self, keep_segments: int = 0) -> asyncio.Task[object]:
        """Start removing the oldest unneeded segments; the task's result is their number.

        Args:
            keep_segments: minimum number of segments to retain, the active one included, for slow followers.
        """
        return self._tasks.spawn(self._collector.run(keep_segments), "wal-collect")

    def stats(self) -> WalStats:
        """Return statistics of the log."""
        counts, state = self._appender.counts, self._state
        return WalStats(
            **asdict(counts),
            markers=self._appender.markers.count,
            collected=self._collector.removed,
            moved=self._collector.moved,
            pending_bytes=self._queue.pending_bytes,
            segments=len(state.closed) + 1,
            pinned_by=tuple(state.pinning()),
            disk_error=self.disk_error,
        )

    @property
    def latency(self) -> Latency:
        """Latency of the log's rounds."""
        return self._appender.latency

    @property
    def disk_error(self) -> OSError | None:
        """Why the log cannot grow now (a full disk, or its reserve); None: it can."""
        return self._appender.roller.error

    @property
    def failed(self) -> OSError | None:
        """The I/O error after which nothing is acknowledged any more; None: none."""
        return self._appender.failed

    async def close(self) -> None:
        """Write the ready slots, fail those only reserved, seal the segment. Durable on return."""
        if not self._admission.closed:
            self._admission.closed = True
            await self._appender.close()
