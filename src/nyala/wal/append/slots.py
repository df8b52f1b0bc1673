"""The queue between callers and the appender: slots in the order of their reservation, limited in bytes.

RESERVED (position fixed) → READY (serialised) → DONE (durable, or failed). Used on the event loop only.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum

from nyala.common.errors import Throttled
from nyala.common.ids import TabletId
from nyala.raft.messages import Entry, HardState
from nyala.wal.segments.format import RECORD_HEADER_BYTES, RecordDraft

Callback = Callable[[OSError | None], None]


class SlotState(Enum):
    """State of a slot."""

    RESERVED = 1
    READY = 2
    DONE = 3


class Slot:
    """A reserved position in the log, from `Wal.reserve`, passed to `Wal.append_async`."""

    __slots__ = (
        "callback", "drafts", "entries", "forget", "frees", "group", "hard_state", "size_bytes",
        "state",
    )  # fmt: skip

    def __init__(
        self,
        group: TabletId | None,
        entries: Sequence[Entry] = (),
        hard_state: HardState | None = None,
        *,
        forget: bool = False,
        frees: bool = False,
    ) -> None:
        self.group = group
        self.entries = tuple(entries)
        self.hard_state = hard_state
        self.forget = forget
        self.frees = frees or forget
        """It allows the log to release older records: neither a full queue nor a full disk refuses it."""
        self.state = SlotState.RESERVED
        self.drafts: list[RecordDraft] = []
        self.callback: Callback | None = None
        self.size_bytes = RECORD_HEADER_BYTES * (len(self.entries) + 1)
        self.size_bytes += sum(len(e.payload) for e in self.entries)
        if hard_state is not None and hard_state.vote is not None:
            self.size_bytes += len(hard_state.vote)


class SlotQueue:
    """Slots in the order of their reservation.

    Args:
        limit_bytes: limit of the slots that are reserved and not yet durable. One slot is always accepted,
            and so are markers and slots that free the log: they are few and small.

    Attributes:
        freeing: number of queued slots that free the log.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.pending_bytes = 0
        self.freeing = 0
        self._slots: deque[Slot] = deque()

    def add(self, slot: Slot) -> None:
        """Append a slot.

        Raises:
            Throttled: the queue is full; nothing was reserved.
        """
        over = self.pending_bytes and self.pending_bytes + slot.size_bytes > self.limit_bytes
        if over and slot.group is not None and not slot.frees:
            raise Throttled(
                f"{self.pending_bytes} bytes are waiting to be written to the log, the limit is "
                f"{self.limit_bytes}; retry shortly",
                {"retry_after_ms": "20"},
            )
        self.pending_bytes += slot.size_bytes
        self.freeing += slot.frees
        self._slots.append(slot)

    def head_ready(self) -> bool:
        """Return whether the first slot is ready."""
        return bool(self._slots) and self._slots[0].state is SlotState.READY

    def drain(self) -> list[Slot]:
        """Remove and return all slots before the first one that is not ready."""
        taken = []
        while self.head_ready():
            taken.append(self._slots.popleft())
            self.freeing -= taken[-1].frees
        return taken

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def done(self, slots: Sequence[Slot]) -> None:
        """Mark drained slots as done: durable or failed."""
        for slot in slots:
            slot.state = SlotState.DONE
            self.pending_bytes -= slot.size_bytes

    def abandon(self) -> list[Slot]:
        """Empty the queue and return the ready slots: nothing more will be written."""
        slots = list(self._slots)
        self._slots.clear()
        self.freeing = 0
        for slot in slots:
            self.pending_bytes -= slot.size_bytes
        return [s for s in slots if s.state is SlotState.READY]
