"""Which files make the tablet now: one small file, switched atomically; it is a cut of the group's log.

Invariant: the rowsets and `del` files that a manifest names hold nothing stamped above its cut.
docs/internals/formats-tablet.md shows the bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from nyala.common.ids import NO_OP, OpId, TableId, TabletId
from nyala.common.schema import Schema


class AnyCut(Protocol):
    """What a cut looks like, whoever made it (`replica/state_machine.Cut` or `Cut` here)."""

    @property
    def op(self) -> OpId:
        """The last entry whose effect the files hold."""
        ...

    @property
    def stamp(self) -> int:
        """That entry's hybrid time."""
        ...

    @property
    def extra(self) -> bytes:
        """The replica's own state at the cut."""
        ...


@dataclass(frozen=True, slots=True)
class Cut:
    """A point in a group's log that the files stand for; the shape of `replica/state_machine.Cut`.

    Attributes:
        op: the last entry (of any kind) whose effect the files hold; replay starts after it.
        stamp: that entry's hybrid time; the files hold nothing stamped above it.
        extra: the replica's own state at the cut, opaque here.
    """

    op: OpId = NO_OP
    stamp: int = 0
    extra: bytes = b""


@dataclass(frozen=True, slots=True)
class TabletInfo:
    """What a tablet is: fixed at creation, saved in its manifest.

    Attributes:
        tablet_id: also the Raft group's id.
        table_id: of the table.
        table_name: at creation; for people.
        schema: the table's columns.
        partition_schema: how the table is partitioned (`common/partition.PartitionSchema`).
        partition: this tablet's part of it (`common/partition.Partition`).
        options: table options as text; `compression` is `none` (default), `lz4` or `zstd`.
    """

    tablet_id: TabletId
    table_id: TableId
    table_name: str
    schema: Schema
    partition_schema: Any
    partition: Any
    options: Mapping[str, str] = field(default_factory=dict)
