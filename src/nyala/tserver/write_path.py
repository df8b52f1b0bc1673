"""Processing of one batch of a DoPut stream.

1. The tablet must be on this server, and its replica running. 2. The header must fit the tablet's schema.
3. The bytes are decoded and validated. 4. Every row must belong to this tablet. 5. The operation is encoded
once; those bytes are replicated. 6. The result is returned when the operation is committed and applied. A
batch that fails before step 5 has no effect. A batch of a transaction is staged in steps 5 and 6
(`tserver/transactions/staging.py`).
"""

import numpy as np
import pyarrow as pa

from nyala.common.errors import (
    InvalidArgument,
    NyalaError,
    RangesChanged,
    SchemaMismatch,
    TooLarge,
    Unavailable,
)
from nyala.common.ids import ColumnId
from nyala.common.options import Options
from nyala.common.partitioning.partition import EVERYTHING, contains
from nyala.common.schema import Schema, arrow_schema
from nyala.env.env import Env
from nyala.env.tasks import Lane
from nyala.replica.memory import MemoryPart, MemoryTracker
from nyala.replica.status import WriteOutcome
from nyala.security.identity import user_name
from nyala.security.limits.shares import Shares
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.manifest import TabletInfo
from nyala.tablet.files.replicated_ops import RowOp, WriteOp
from nyala.tserver.quotas.hosted_quotas import HostedQuotas
from nyala.tserver.tablets import HostedTablet, Tablets, replicate
from nyala.tserver.transactions.staging import BatchStaging
from nyala.wire import flight, status
from nyala.wire.flight_data import FlightData
from nyala.wire.proto import nyala_pb2 as pb

INLINE_BYTES = 256 << 10
"""Maximum size in bytes of batches that are validated on the loop; larger ones in lane COMPUTE."""
CLIENT_ID_BYTES = 16


class WritePath:
    """Executes batches of clients. Used on the event loop only.

    Args:
        env: lanes.
        tablets: tablets of this server.
        memory: memory tracker of the process.
        options: limits and deadlines.
        shares: of each user in the bytes in flight.
        quotas: tables that are over their quotas.
    """

    def __init__(
        self,
        env: Env,
        tablets: Tablets,
        memory: MemoryTracker,
        options: Options,
        shares: Shares,
        quotas: HostedQuotas,
    ) -> None:
        self._shares = shares
        self._quotas = quotas
        self._env = env
        self._tablets = tablets
        self._memory = memory
        self._options = options
        self._staging = BatchStaging(env, tablets, options)

    async def write(self, stream_schema: pa.Schema, data: FlightData) -> pb.WriteResult:
        """Write one batch; a failure becomes the result's error, so that the stream continues.

        Raises:
            InvalidArgument: the batch has no header; its client may not read results.
        """
        header = _header(data)
        try:
            hosted = self._tablets.get(header.tablet_id)
            return await self._replicate(hosted, header, stream_schema, data)
        except NyalaError as err:
            return pb.WriteResult(request=header.request, error=status.to_proto(err))

    async def _replicate(
        self,
        hosted: HostedTablet,
        header: pb.WriteHeader,
        stream_schema: pa.Schema,
        data: FlightData,
    ) -> pb.WriteResult:
        size = len(data.header) + len(data.body or b"")
        limit = self._options.write_max_bytes
        if size > limit:
            raise TooLarge(
                f"a batch of {size} bytes is over write_max_bytes ({limit}); send smaller batches "
                "(connect(batch_bytes=...))",
                {"limit": str(limit), "size": str(size)},
            )
        if header.op == pb.DELETE_WHERE:
            check_session(header, hosted.tablet.info.schema)
            return await self._staging.delete_where(hosted, header)
        # A follower redirects to the leader, so its own memory limit does not apply.
        if hosted.replica.is_leader:
            self._memory.check(size)
        with self._shares.hold(user_name(), size), self._memory.hold(MemoryPart.WRITES, size):
            payload = await self._encoded(hosted, header, stream_schema, data)
            if header.HasField("stage"):
                return await self._staging.stage(hosted, header, payload)
            return _result(
                header,
                await replicate(hosted.replica, payload, header, self._options.write_timeout_ms),
            )

    async def _encoded(
        self,
        hosted: HostedTablet,
        header: pb.WriteHeader,
        stream_schema: pa.Schema,
        data: FlightData,
    ) -> bytes:
        """Return the operation of a batch that is valid for the tablet."""
        info = hosted.tablet.info  # read once: an alteration may be applied at any time
        op, columns = check_header(header, info.schema)
        expected = batch_schema(info.schema, op, columns)
        check_types(stream_schema, expected)
        if len(data.body or b"") <= INLINE_BYTES:
            batch = decode_and_check(info, op, expected, data)
        else:
            batch = await self._env.tasks.run(
                Lane.COMPUTE, decode_and_check, info, op, expected, data
            )
        if hosted.replica.is_leader and not self._staging.has(hosted, header):
            self._quotas.check(info, op, batch)
        message = flight.join_message(data.header, data.body)
        return replicated_ops.encode(
            WriteOp(op, header.schema_version, columns, header.all_or_nothing, message)
        )


def _result(header: pb.WriteHeader, outcome: WriteOutcome) -> pb.WriteResult:
    """Return the result of a batch that was applied.

    Raises:
        RangesChanged: the tablet's range was dropped; nothing was written.
    """
    rows, errors = replicated_ops.decode_result(outcome.result)
    if errors and errors[0].code == replicated_ops.RANGE_DROPPED:
        raise RangesChanged(
            f"the range of tablet {header.tablet_id} was dropped; nothing was written; read the "
            "table's ranges again"
        )
    return pb.WriteResult(
        request=header.request,
        timestamp=outcome.stamp,
        rows=rows,
        duplicate=outcome.duplicate,
        row_errors=[pb.RowError(row=e.row, code=e.code, message=e.message) for e in errors],
    )


def _header(data: FlightData) -> pb.WriteHeader:
    try:
        header = pb.WriteHeader.FromString(bytes(data.app_metadata))
    except Exception as err:  # protobuf's DecodeError; any error is the client's
        raise InvalidArgument(
            f"the metadata of a batch is not a WriteHeader: {err}; see docs/internals/formats-wire.md"
        ) from err
    if not header.tablet_id:
        raise InvalidArgument(
            "a batch needs a WriteHeader (nyala.v1) as app_metadata; see docs/internals/formats-wire.md"
        )
    return header


def check_header(header: pb.WriteHeader, schema: Schema) -> tuple[RowOp, tuple[ColumnId, ...]]:
    """Return the operation and the column ids of a header, checked against a schema.

    A batch for an older schema version is valid if all its columns still exist: columns are named by id, and
    newer columns are unset.

    Raises:
        Unavailable: made for a newer schema version, which this replica has not applied yet.
        SchemaMismatch: unknown columns.
        InvalidArgument: an invalid operation, client id or sequence, or a column twice.
    """
    check_session(header, schema)
    try:
        op = RowOp(header.op)
    except ValueError:
        raise InvalidArgument(f"unknown write operation {header.op}; use one of RowOp") from None
    columns = tuple(ColumnId(i) for i in header.column_ids)
    missing = [schema.by_id[k].name for k in schema.key_ids if k not in columns]
    unknown = [i for i in columns if i not in schema.by_id]
    if unknown and header.schema_version < schema.version:
        raise SchemaMismatch(
            f"the batch was made for schema version {header.schema_version}; its columns with the ids "
            f"{unknown} were dropped since, the table has version {schema.version}; open the table again"
        )
    if missing or unknown or len(set(columns)) != len(columns):
        raise SchemaMismatch(
            f"a batch names every key column and no column twice; missing: {missing}, unknown ids: "
            f"{unknown}, given: {list(columns)}"
        )
    return op, columns


def check_session(header: pb.WriteHeader, schema: Schema) -> None:
    """Check the client session of a header, and that its schema version is known here.

    Raises:
        Unavailable: made for a newer schema version, which this replica has not applied yet.
        InvalidArgument: an invalid client id or sequence.
    """
    if header.schema_version > schema.version:
        raise Unavailable(
            f"the batch was made for schema version {header.schema_version}; this replica has version "
            f"{schema.version} and has not applied the alteration yet; retry"
        )
    if len(header.client_id) != CLIENT_ID_BYTES or header.sequence < 1:
        raise InvalidArgument("a write needs a client_id of 16 bytes and a sequence of 1 or more")
    if not 0 <= header.first_outstanding <= header.sequence:
        raise InvalidArgument(
            f"first_outstanding {header.first_outstanding} is above sequence {header.sequence}"
        )


def batch_schema(schema: Schema, op: RowOp, columns: tuple[ColumnId, ...]) -> pa.Schema:
    """Return the Arrow schema that a batch of these columns must have.

    Args:
        schema: schema of the table.
        op: the operation, such as UPSERT.
        columns: ids of the columns, in the order of the batch.
    """
    fields = [pa.field(f.name, f.type) for f in arrow_schema(schema.by_id[i] for i in columns)]
    if op is RowOp.MIXED:
        fields.append(pa.field(replicated_ops.OP_COLUMN, pa.uint8()))
    return pa.schema(fields)


def check_types(given: pa.Schema, expected: pa.Schema) -> None:
    """Reject a stream whose columns do not have the table's types; names do not matter.

    Raises:
        SchemaMismatch: the types differ; the message lists both.
    """
    if given.types != expected.types:
        raise SchemaMismatch(
            f"the stream's columns are ({', '.join(map(str, given.types))}), the table's "
            f"({', '.join(map(str, expected.types))}); cast them first"
        )


def decode_and_check(
    info: TabletInfo, op: RowOp, expected: pa.Schema, data: FlightData
) -> pa.RecordBatch:
    """Decode and validate a batch, and check that its rows belong to this tablet.

    Args:
        info: schema and partition of the tablet.
        op: the operation, such as UPSERT.
        expected: Arrow schema of the batch.
        data: the Flight message.

    Raises:
        InvalidArgument: damaged bytes, an unknown operation code, a row of another tablet.
    """
    batch = flight.read_batch(expected, data.header, data.body)
    if op is RowOp.MIXED and batch.num_rows:
        codes = batch.column(batch.num_columns - 1)
        known = np.isin(
            codes.fill_null(0).to_numpy(),
            [o for o in RowOp if o is not RowOp.MIXED],
        )
        if not known.all():
            row = int(np.flatnonzero(~known)[0])
            raise InvalidArgument(f"row {row} has the unknown op code {codes[row]}")
    _check_partition(info, batch)
    return batch


def _check_partition(info: TabletInfo, batch: pa.RecordBatch) -> None:
    if not info.partition.buckets and info.partition.range == EVERYTHING:
        return
    keys = [batch.column(c.name) for c in info.schema.key_columns]
    valid = batch
    if any(k.null_count for k in keys):  # rows with null keys get a row error at apply
        whole = np.logical_and.reduce([k.is_valid().to_numpy(zero_copy_only=False) for k in keys])
        valid = batch.filter(pa.array(whole))
    inside = contains(info.schema, info.partition_schema, info.partition, valid)
    if not inside.all():
        raise InvalidArgument(
            f"{int((~inside).sum())} of {batch.num_rows} rows belong to another tablet than "
            f"{info.tablet_id}; open the table again to read its partitions"
        )
