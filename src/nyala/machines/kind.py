"""Kinds of state machines: the operations with which servers create, open, alter and describe one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from nyala.common.ids import TableId, TabletId
from nyala.common.partitioning.partition import TabletPartition
from nyala.env.files import Files
from nyala.replica.state_machine import StateMachine
from nyala.storage.flush_point import StoredFlushPoint
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """State of a state machine as servers report it.

    Attributes:
        kind: number of its kind (`TableSpec.kind`).
        tablet_id: also the Raft group's id.
        table_id: id of the table or journal.
        name: name of the table or journal.
        version: version of its definition, which for a table is its schema.
        data_bytes: on disk, and in memory until they are flushed.
        items: live rows, or valid entries and keys.
        horizon: the earliest hybrid time that can still be read; 0: it has no history.
        retired_at: hybrid time at which its range was dropped; 0: it was not.
        partition: its part of the table.
        options: options of its definition.
    """

    kind: int
    tablet_id: TabletId
    table_id: TableId
    name: str
    version: int
    data_bytes: int
    items: int
    horizon: int = 0
    retired_at: int = 0
    partition: TabletPartition = field(default_factory=TabletPartition)
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ContentSum:
    """A checksum under way, the same for all replicas that have the same content.

    Attributes:
        version: version of the definition.
        parts: number of items and sum of each part; the sums are added modulo 2**64. Drawn in lane COMPUTE;
            raises HistoryGone if the time is too long ago, Corrupt if a file is damaged.
    """

    version: int
    parts: Iterator[tuple[int, int]]


class MachineKind(Protocol):
    """One kind. Calls that touch files block; the caller chooses the lane."""

    @property
    def number(self) -> int:
        """On the wire and in the catalog (`TableSpec.kind`)."""
        ...

    @property
    def name(self) -> str:
        """Name of the kind in messages: `table`, `journal`."""
        ...

    @property
    def items_name(self) -> str:
        """Name of its items in messages: `rows`."""
        ...

    @property
    def machine_class(self) -> type[StateMachine]:
        """Class of its machines."""
        ...

    @property
    def file_name(self) -> str:
        """Name of the file that names the others in a machine's directory, and is written last."""
        ...

    def create(self, files: Files, directory: str, order: pb.CreateTabletRequest) -> StateMachine:
        """Make an empty machine, durable on return.

        Args:
            files: the file system.
            directory: is made.
            order: the masters'.

        Raises:
            AlreadyPresent: there is one in the directory.
            InvalidArgument: a definition that this build does not support.
        """
        ...

    def open(self, files: Files, directory: str) -> StateMachine:
        """Open the machine of a directory; the log is replayed from after its flush point.

        Raises:
            Corrupt: a file is missing or damaged.
        """
        ...

    def describe(self, machine: StateMachine) -> MachineInfo:
        """Return what is reported of a machine of this kind."""
        ...

    def known(self, machine: StateMachine) -> pb.TabletDefinition:
        """Return what a machine knows of its table and of transactions, from which a catalog is rebuilt."""
        ...

    def definition(self, machine: StateMachine, order: pb.AlterTabletRequest) -> bytes | None:
        """Return the operation that makes a machine what the masters define; None: it is that, or newer.

        Raises:
            InvalidArgument: no such definition can follow the machine's.
        """
        ...

    def checksum(
        self, machine: StateMachine, at: int, batch_rows: int, batch_bytes: int
    ) -> ContentSum:
        """Begin a checksum of a machine's content at a time that it has reached. On the loop.

        Args:
            machine: a machine of this kind.
            at: hybrid time.
            batch_rows: the most rows of one part.
            batch_bytes: about the size of one part.

        Raises:
            Unavailable: the machine is closed.
        """
        ...

    def check_files(self, files: Files, directory: str) -> None:
        """Check that the file that names the others is whole, and that they are there.

        Raises:
            Corrupt: a file is missing or damaged. BadVersion: a newer release wrote it.
        """
        ...

    def flush_point(self, files: Files, directory: str) -> StoredFlushPoint:
        """Return the flush point of the machine in a directory.

        Raises:
            Corrupt, BadVersion: as `check_files`.
        """
        ...

    def verify(self, machine: StateMachine) -> int:
        """Read all that the files hold of a machine that was just opened; return the number of its items.

        Raises:
            Corrupt: a file is damaged.
        """
        ...

    def figures(self, machine: StateMachine) -> Mapping[str, float]:
        """Return measurements of a machine's files and memory, by the name of the metric. On the loop."""
        ...

    def check_result(self, result: bytes) -> None:
        """Refuse what an operation of `definition` resulted in, if it had no effect.

        Raises:
            InvalidArgument: why it had none.
        """
        ...
