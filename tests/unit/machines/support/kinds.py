"""Machines of each kind with content of their own, for tests of what serves all kinds."""

from typing import Any

import pytest

from nyala.common.ids import CommittedOperation, OpId
from nyala.common.partitioning.partition import PartitionSchema, TabletPartition
from nyala.env.files import SystemFiles
from nyala.journal import steps
from nyala.machines import registry
from nyala.storage.flush_point import StoredFlushPoint
from nyala.tablet.files.replicated_ops import RowOp
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.tablet.support.tablet_support import INT_KEY, numbered, payload

FILES = SystemFiles()
KINDS = pytest.mark.parametrize("kind", registry.KINDS, ids=lambda kind: kind.name)
"""Mark of a test that runs for each kind, which is its argument `kind`."""


def order(kind: Any, **options: str) -> pb.CreateTabletRequest:
    """Return the order that creates a machine of a kind."""
    request = pb.CreateTabletRequest(
        tablet_id="ab" * 16, table_id="cd" * 16, table_name="n", kind=kind.number, options=options
    )
    if kind is registry.TABLE:
        request.schema.CopyFrom(convert.schema_to_proto(INT_KEY))
        request.partition_schema.CopyFrom(convert.partition_schema_to_proto(PartitionSchema()))
        request.partition.CopyFrom(convert.partition_to_proto(TabletPartition()))
    return request


def adding(kind: Any, number: int) -> bytes:
    """Return an operation that adds one row, or one key."""
    if kind is registry.TABLE:
        return payload(INT_KEY, RowOp.INSERT, numbered(number, number + 1))
    return steps.encode_step(steps.Step([], [steps.SetKey(f"{number}", b"%d" % number)]))


def removing(kind: Any, number: int) -> bytes:
    """Return an operation that removes a row, or a key."""
    if kind is registry.TABLE:
        return payload(INT_KEY, RowOp.DELETE, [{"k": number}], ["k"])
    return steps.encode_step(steps.Step([], [steps.DeleteKey(f"{number}")]))


class KindDriver:
    """A machine with a log that grows; each operation has the next index and stamp.

    Args:
        kind: of the machine.
        directory: is made.
        items: rows or keys that it gets, with one operation each.

    Attributes:
        machine: the machine.
        now: stamp of the last operation.
    """

    def __init__(self, kind: Any, directory: str, items: int) -> None:
        self.kind = kind
        self.machine: Any = kind.create(FILES, directory, order(kind))
        self._index = 0
        self.apply(*(adding(kind, number) for number in range(items)))

    @property
    def now(self) -> int:
        """Return the stamp of the last operation."""
        return 10 * self._index

    def apply(self, *operations: bytes) -> None:
        """Apply operations together."""
        group = []
        for operation in operations:
            self._index += 1
            group.append(CommittedOperation(OpId(1, self._index), self.now, operation))
        self.machine.apply(group)

    def flush(self) -> None:
        """Write the content to files."""
        point = StoredFlushPoint(OpId(1, self._index), self.now, b"")
        self.machine.prepare_flush(point)()()
