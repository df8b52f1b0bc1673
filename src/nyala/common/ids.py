"""The names of things: distinct types for ids, and the ordered op id.

Rules: values only; nothing here reads a clock or makes a random number (callers pass them in).
"""

from dataclasses import dataclass
from typing import NewType

import msgspec

TableId = NewType("TableId", str)
"""32 hex digits, unique for ever; a re-created table has a new one."""
TabletId = NewType("TabletId", str)
"""32 hex digits; also the id of the Raft group that replicates the tablet."""
ServerUuid = NewType("ServerUuid", str)
"""32 hex digits, written into `instance` when a data directory is formatted."""
ColumnId = NewType("ColumnId", int)

SYS_CATALOG = TabletId("0" * 32)
"""The masters' replicated tablet: one well-known group id in every cluster."""


class OpId(msgspec.Struct, frozen=True, order=True):
    """Position of an entry in a Raft log: (term, index), ordered by term first (dissertation 3.6.1)."""

    term: int
    index: int

    def __str__(self) -> str:
        return f"{self.term}.{self.index}"


NO_OP = OpId(0, 0)
"""Before the first entry of any log."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One committed operation, to be applied to a state machine.

    Attributes:
        id: position in the group's log.
        stamp: hybrid time given by the leader; grows strictly with the log.
        payload: the bytes that were replicated; the machine alone knows their format.
    """

    id: OpId
    stamp: int
    payload: bytes
