"""Admission of records to the log: checks, order, serialisation.

Callers use `Wal.reserve` and `Wal.append_async`. Requests are refused before anything is reserved. Used on
the event loop only.
"""

from collections.abc import Sequence

from nyala.common.errors import Throttled, Unavailable
from nyala.common.ids import TabletId
from nyala.raft.messages import Entry, HardState
from nyala.wal.append.appender import Appender
from nyala.wal.append.slots import Callback, Slot, SlotQueue, SlotState
from nyala.wal.log_state import LogState
from nyala.wal.segments.format import (
    BEGINS,
    RECORD_HEADER_BYTES,
    TAIL,
    RecordKind,
    check_entry,
    draft,
    draft_entry,
    draft_hard_state,
    draft_moved,
    group_bytes,
)


class Admission:
    """Reserves slots until it is closed.

    Args:
        queue: queue of the reserved slots.
        appender: woken when a slot is ready.
        state: has the free space of the active segment.
        hard_states: the last one of each group.

    Attributes:
        closed: no slot is accepted any more.
    """

    def __init__(
        self,
        queue: SlotQueue,
        appender: Appender,
        state: LogState,
        hard_states: dict[TabletId, HardState],
    ) -> None:
        self.closed = False
        self._queue = queue
        self._appender = appender
        self._state = state
        self._hard_states = hard_states
        self._next: dict[TabletId, int | None] = {}  # None: any index

    def reserve(
        self, group: TabletId, entries: Sequence[Entry], hard_state: HardState | None
    ) -> Slot:
        """Reserve a slot; see `Wal.reserve`.

        Args:
            group: id of the Raft group.
            entries: contiguous.
            hard_state: None: unchanged.

        Raises:
            Throttled, TooLarge, Unavailable: nothing was reserved.
        """
        self._admit(group, entries)
        slot = Slot(group, entries, hard_state)
        return self._take(slot)

    def _take(self, slot: Slot) -> Slot:
        group, entries, hard_state = slot.group, slot.entries, slot.hard_state
        assert group is not None, "a marker is the appender's own"
        self._enqueue(slot)
        if hard_state is not None:
            self._hard_states[group] = hard_state
        if entries:
            self._next[group] = entries[-1].id.index + 1
        return slot

    def _admit(self, group: TabletId, entries: Sequence[Entry]) -> None:
        if self.closed:
            raise Unavailable(
                "the log is closed because the server is stopping; use another server"
            )
        group_bytes(group)
        following = self._following(group)
        for entry in entries:
            check_entry(entry)
            index = entry.id.index
            replaces = entry is entries[0] and following is not None and index < following
            assert following is None or index == following or replaces, (
                f"{group}: entry {entry.id} stands where index {following} is due"
            )
            following = index + 1

    def _following(self, group: TabletId) -> int | None:
        """Return the index after the last reserved entry; None: any index."""
        if group in self._next:
            return self._next[group]
        bounds = self._state.index.bounds(group)
        return None if bounds is None else bounds[1]

    def _enqueue(self, slot: Slot) -> None:
        if self._appender.refusal is not None:
            return  # append_async reports the error
        if not slot.frees:
            self._check_room(slot.size_bytes)
        self._queue.add(slot)

    def _check_room(self, size_bytes: int) -> None:
        """Raise Throttled if the disk is full, or as `_check_length`."""
        roller, active = self._appender.roller, self._state.active
        begun = active.segment.end + self._queue.pending_bytes
        if roller.error is not None and begun + size_bytes > active.preallocated_bytes:
            raise Throttled(
                f"the log cannot grow: {roller.error}; free space on its disk",
                {"retry_after_ms": "1000"},
            )
        self._check_length(size_bytes)

    def _check_length(self, size_bytes: int) -> None:
        """Raise Throttled if the active segment would grow too far before the next one is ready."""
        roller, active, queue = self._appender.roller, self._state.active, self._queue
        length, begun = active.preallocated_bytes, active.segment.end + queue.pending_bytes
        if not roller.ready and begun >= length and begun + size_bytes > length + queue.limit_bytes:
            raise Throttled(
                f"the log waits for its next segment, and the current one has {begun} of {length} "
                f"bytes; retry shortly",
                {"retry_after_ms": "100"},
            )

    def append_async(self, slot: Slot, callback: Callback) -> None:
        """Serialise a slot and pass it to the appender."""
        assert slot.state is SlotState.RESERVED, f"slot handed in twice: {slot.state}"
        if self._appender.refusal is not None:
            slot.state = SlotState.DONE
            self._appender.call_back(callback, self._appender.refusal)
            return
        assert slot.group is not None, "a marker is the appender's own"
        raw = group_bytes(slot.group)
        if slot.forget:
            slot.drafts.append(draft(RecordKind.FORGET, raw))
        if slot.hard_state is not None:
            slot.drafts.append(draft_hard_state(raw, slot.hard_state))
        slot.drafts.extend(draft_entry(raw, e) for e in slot.entries)
        slot.callback = callback
        slot.state = SlotState.READY
        self._appender.wake()

    def forget(self, group: TabletId, callback: Callback | None = None) -> None:
        """Void all earlier records of a group; `callback` is called when that is durable."""
        self._admit(group, ())
        if not self._queue.pending_bytes and self._appender.refusal is None:
            # All is durable: the index has no entry of the groups that were forgotten before.
            self._next = {g: index for g, index in self._next.items() if index is not None}
        slot = Slot(group, forget=True)
        self._enqueue(slot)
        self._hard_states.pop(group, None)
        self._next[group] = None
        self.append_async(slot, callback or (lambda err: None))

    def move(
        self,
        group: TabletId,
        entries: Sequence[Entry],
        rest: int,
        callback: Callback,
        *,
        begins: bool,
    ) -> bool:
        """Append entries of a run again; return False, and do nothing, if some of them are being replaced.

        Args:
            group: id of the Raft group.
            entries: contiguous, as the log has them.
            rest: number of entries of the run that follow them.
            callback: as for `append_async`.
            begins: they are the first of the run.

        Raises:
            Unavailable: the log is closed. Throttled: it waits for its next segment.
        """
        self._admit(group, ())
        end = entries[-1].id.index + 1 + rest
        replaced = any(
            slot.group == group
            and (slot.forget or (slot.entries and slot.entries[0].id.index < end))
            for slot in self._appender.unfinished()
        )
        if replaced or not all(self._state.index.holds(group, e.id) for e in entries):
            return False
        slot, raw = Slot(group, frees=True), group_bytes(group)
        flags = BEGINS * begins | TAIL * (self._following(group) == end)
        after = rest + len(entries) - 1
        for entry in entries:
            slot.drafts.append(draft_moved(raw, entry, after, flags))
            slot.size_bytes += RECORD_HEADER_BYTES + len(entry.payload)
            after, flags = after - 1, 0
        if self._appender.roller.error is None:  # a full disk has a bound of its own
            self._check_length(slot.size_bytes)
        self._enqueue(slot)
        self.append_async(slot, callback)
        return True

    def rewrite(self, group: TabletId, callback: Callback) -> bool:
        """Append the last hard state of a group again, even if the queue is full.

        Return False, and do nothing, if the record that voids the group is waiting to be written.

        Raises:
            Unavailable: the log is closed.
        """
        self._admit(group, ())
        if group not in self._hard_states:
            return False
        slot = self._take(Slot(group, (), self._hard_states[group], frees=True))
        self.append_async(slot, callback)
        return True
