"""Flush points: positions in a group's log that a state machine's files represent."""

from dataclasses import dataclass
from typing import Protocol

from nyala.common.ids import NO_OP, OpId


class LogPoint(Protocol):
    """The attributes of a flush point, of `replica/state_machine.FlushPoint` or `StoredFlushPoint`."""

    @property
    def op(self) -> OpId:
        """The last entry whose effect the files hold."""
        ...

    @property
    def stamp(self) -> int:
        """Hybrid time of that entry."""
        ...

    @property
    def extra(self) -> bytes:
        """The replica's own state at the flush point."""
        ...


@dataclass(frozen=True, slots=True)
class StoredFlushPoint:
    """Position in a group's log that the files represent; the shape of `replica/state_machine.FlushPoint`.

    Attributes:
        op: the last entry (of any kind) whose effect the files hold; replay starts after it.
        stamp: that entry's hybrid time; the files contain no stamp above it.
        extra: the replica's own state at the flush point, opaque here.
    """

    op: OpId = NO_OP
    stamp: int = 0
    extra: bytes = b""
