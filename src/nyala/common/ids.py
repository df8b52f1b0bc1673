"""Identifiers: distinct types for ids, and the ordered op id."""

from dataclasses import dataclass
from typing import NamedTuple, NewType

import msgspec

TableId = NewType("TableId", str)
"""32 hex digits, never reused; a re-created table has a new one."""
TabletId = NewType("TabletId", str)
"""32 hex digits; also the id of the Raft group that replicates the tablet."""
ServerUuid = NewType("ServerUuid", str)
"""32 hex digits, stored in the file `instance` when a data directory is formatted."""
ColumnId = NewType("ColumnId", int)

SYS_CATALOG = TabletId("0" * 32)
"""Group id of the masters' replicated catalog, the same in every cluster."""


class OpId(msgspec.Struct, frozen=True, order=True):
    """Id of a Raft log entry: (term, index), ordered by term first (dissertation 3.6.1)."""

    term: int
    index: int

    def __str__(self) -> str:
        return f"{self.term}.{self.index}"


NO_OP = OpId(0, 0)
"""Op id before the first entry of a log."""


@dataclass(frozen=True, slots=True)
class CommittedOperation:
    """One committed operation, to be applied to a state machine.

    Attributes:
        id: position in the group's log.
        stamp: hybrid time assigned by the leader; strictly increasing in the log.
        payload: the replicated bytes; only the state machine knows their format.
    """

    id: OpId
    stamp: int
    payload: bytes


class PreparedTransaction(NamedTuple):
    """A transaction that a tablet has prepared and not resolved.

    Attributes:
        at: prepare time; its commit time is above it.
        attempt: attempt of the coordinator, which is ordered as it is.
    """

    at: int
    attempt: tuple[int, int, int]
