"""Kind 0: a tablet of a table, stored in columns."""

from collections.abc import Iterator, Mapping

from nyala.common.alteration import check_successor
from nyala.common.errors import InvalidArgument
from nyala.common.ids import TableId, TabletId
from nyala.env.files import Files
from nyala.machines.kind import ContentSum, MachineInfo
from nyala.replica.state_machine import StateMachine
from nyala.storage.flush_point import StoredFlushPoint
from nyala.tablet.files import manifest
from nyala.tablet.files.columns import compression_of
from nyala.tablet.files.manifest import TabletInfo
from nyala.tablet.files.replicated_ops import SchemaOp, decode_result, encode_schema
from nyala.tablet.read.checksum import checksum
from nyala.tablet.read.view import View
from nyala.tablet.tablet import Tablet
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb

QUOTA_OPTION = "max_bytes"
"""Option of a table: its quota in bytes."""


class TableKind:
    """Tablets of tables; see `MachineKind`."""

    number = 0
    name = "table"
    items_name = "rows"
    file_name = manifest.NAME
    machine_class = Tablet

    def create(self, files: Files, directory: str, order: pb.CreateTabletRequest) -> StateMachine:
        """Make an empty tablet with the order's schema and partition.

        Args:
            files: the file system.
            directory: directory of the tablet.
            order: defines it.
        """
        first = ((order.ranges_version, 0),) if order.ranges_version else ()
        info = TabletInfo(
            TabletId(order.tablet_id),
            TableId(order.table_id),
            order.table_name,
            convert.schema_from_proto(order.schema),
            convert.partition_schema_from_proto(order.partition_schema),
            convert.partition_from_proto(order.partition),
            dict(order.options),
            first,
        )
        return Tablet.create(files, directory, info)

    def open(self, files: Files, directory: str) -> StateMachine:
        """Open a tablet."""
        return Tablet.open(files, directory)

    def describe(self, machine: StateMachine) -> MachineInfo:
        """Return what is reported of a tablet; its version is its schema's."""
        assert isinstance(machine, Tablet), machine
        info = machine.info
        return MachineInfo(
            kind=self.number,
            tablet_id=info.tablet_id,
            table_id=info.table_id,
            name=info.table_name,
            version=info.schema.version,
            data_bytes=machine.data_bytes,
            items=machine.rows,
            horizon=machine.horizon,
            retired_at=info.retired_at,
            partition=info.partition,
            options=info.options,
        )

    def known(self, machine: StateMachine) -> pb.TabletDefinition:
        """Return what a tablet knows of its table, and of transactions that are prepared or have ended."""
        assert isinstance(machine, Tablet), machine
        info = machine.info
        spec = pb.TableSpec(
            name=info.table_name,
            schema=convert.schema_to_proto(info.schema),
            partition=convert.partition_schema_to_proto(info.partition_schema),
            options=info.options,
            ranges_version=max((version for version, _ in info.ranges), default=0),
            kind=self.number,
        )
        ended, prepared = dict(machine.stages.ended), machine.prepared
        return pb.TabletDefinition(
            spec=spec,
            ranges=[pb.RangesChange(version=version, at=at) for version, at in info.ranges],
            columns_from=max(info.columns_from, 0),
            columns_unknown=info.columns_from == manifest.UNKNOWN,
            transactions=[
                *(pb.KnownTransaction(transaction=t, prepared=p.at) for t, p in prepared.items()),
                *(pb.KnownTransaction(transaction=t, ended=at) for t, at in ended.items()),
            ],
        )

    def definition(self, machine: StateMachine, order: pb.AlterTabletRequest) -> bytes | None:
        """Return the operation that gives a tablet the order's schema and options."""
        assert isinstance(machine, Tablet), machine
        op = SchemaOp(
            convert.schema_from_proto(order.schema),
            order.table_name,
            dict(order.options),
            order.ranges_version,
            order.retire,
        )
        now = machine.info.schema
        if op.schema.version <= now.version:
            return None
        check_successor(now, op.schema)
        compression_of(op.options)
        return encode_schema(op)

    def checksum(
        self, machine: StateMachine, at: int, batch_rows: int, batch_bytes: int
    ) -> ContentSum:
        """Begin a checksum of a tablet's rows.

        Args:
            machine: a tablet.
            at: hybrid time of the rows.
            batch_rows: the most rows of a part.
            batch_bytes: about the size of a part.
        """
        assert isinstance(machine, Tablet), machine
        view = machine.view()
        return ContentSum(view.schema.version, _sums(view, at, batch_rows, batch_bytes))

    def check_files(self, files: Files, directory: str) -> None:
        """Check the manifest of a tablet, and that the files that it names exist."""
        manifest.check_files(files, directory, manifest.load(files, directory))

    def flush_point(self, files: Files, directory: str) -> StoredFlushPoint:
        """Return the flush point of a tablet's files."""
        return manifest.load(files, directory).flush_point

    def verify(self, machine: StateMachine) -> int:
        """Read all rows and staged batches of a tablet's files; return how many rows there are."""
        assert isinstance(machine, Tablet), machine
        machine.verify_stages()
        retired, at = machine.info.retired_at, machine.flush_point.stamp
        at = min(at, retired - 1) if retired else at
        view = machine.view()
        rows: int = sum(batch.num_rows for batch in view.scan(max(at, machine.horizon)))
        view.check()
        return rows

    def figures(self, machine: StateMachine) -> Mapping[str, float]:
        """Return measurements of a tablet."""
        assert isinstance(machine, Tablet), machine
        found = machine.figures()
        return {
            "tablet_rowset_count": found.rowsets,
            "tablet_depth_rowsets": found.depth,
            "tablet_live_versions": found.versions - found.ended,
            "tablet_ended_versions": found.ended,
            "tablet_file_bytes": found.file_bytes,
            "tablet_memory_bytes": found.memory_bytes,
            "tablet_staged_bytes": machine.stages.size_bytes,
            "tablet_staged_transactions": len(machine.stages.stages),
            "tablet_history_seconds": found.history_s,
            "tablet_amplification_ratio": found.amplification,
            "tablet_flushed_versions_total": found.flushed,
            "tablet_compacted_versions_total": found.merged,
        }

    def check_result(self, result: bytes) -> None:
        """Refuse an alteration that the tablet refused."""
        for error in decode_result(result)[1]:
            raise InvalidArgument(error.message)


def quota_of(options: Mapping[str, str]) -> int:
    """Return the quota of a table with these options, in bytes; 0: it has none.

    Raises:
        InvalidArgument: it is no positive whole number.
    """
    text = options.get(QUOTA_OPTION)
    if text is None:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) <= 18 and int(text)):
        raise InvalidArgument(
            f"option {QUOTA_OPTION} is {text[:40]!r}; it is a whole number of bytes, from 1 to 10**18 - 1; "
            "write it in digits, or '' for no quota"
        )
    return int(text)


def _sums(view: View, at: int, batch_rows: int, batch_bytes: int) -> Iterator[tuple[int, int]]:
    ids = [c.id for c in view.schema.columns]
    for batch in view.scan(at, batch_rows=batch_rows, batch_bytes=batch_bytes):
        found = batch.num_rows, checksum(batch, ids)
        view.check()
        yield found
    view.check()
