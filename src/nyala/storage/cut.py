"""Cuts: positions in a group's log that a state machine's files represent."""

from dataclasses import dataclass
from typing import Protocol

from nyala.common.ids import NO_OP, OpId


class LogCut(Protocol):
    """The attributes of a cut, of `replica/state_machine.Cut` or `FlushedCut`."""

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
        """The replica's own state at the cut."""
        ...


@dataclass(frozen=True, slots=True)
class FlushedCut:
    """Position in a group's log that the files represent; the shape of `replica/state_machine.Cut`.

    Attributes:
        op: the last entry (of any kind) whose effect the files hold; replay starts after it.
        stamp: that entry's hybrid time; the files contain no stamp above it.
        extra: the replica's own state at the cut, opaque here.
    """

    op: OpId = NO_OP
    stamp: int = 0
    extra: bytes = b""
