"""Runs scan tokens: fixes the snapshot with the replica, reads an immutable view, streams batches.

The stream is the scanner: it holds the view for as long as the client reads and no longer than
`scanner_ttl_ms` without the client taking a batch (gRPC's own flow control is what it waits for).
"""

from collections.abc import AsyncIterator, Callable, Iterator

import pyarrow as pa

from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.ids import ColumnId
from nyala.common.predicate import Predicate
from nyala.common.schema import arrow_schema
from nyala.env.env import Env
from nyala.env.tasks import Lane
from nyala.tablet.view import View
from nyala.tserver.tablets import Tablets
from nyala.wire import convert, flight
from nyala.wire.flight_data import FlightData
from nyala.wire.proto import nyala_pb2 as pb

MAX_BATCH_ROWS = 1_000_000
MAX_BATCH_BYTES = 16 << 20
DEFAULT_BATCH_ROWS = 65_536
DEFAULT_TIMEOUT_MS = 60_000
COUNT_SCHEMA = pa.schema([pa.field("_count", pa.int64(), nullable=False)])
_END = object()


class Scanners:
    """Serves reads of this server's tablets. Runs on the loop.

    Args:
        env: lanes.
        tablets: what is here.
        server_uuid: goes into each scan's header.
        batch_bytes: size of a batch when the token does not say.
    """

    def __init__(self, env: Env, tablets: Tablets, server_uuid: str, batch_bytes: int) -> None:
        self._env = env
        self._tablets = tablets
        self._uuid = server_uuid
        self._batch_bytes = batch_bytes

    async def run(self, token: pb.ScanToken) -> AsyncIterator[FlightData]:
        """Yield the schema (with a `ScanHeader`), then batches, all at one time.

        Raises:
            NotFound: no such tablet here.
            NotLeader: another replica leads; details name it.
            HistoryGone: the snapshot lies below the history that is kept.
            InvalidArgument: the token does not fit the tablet.
        """
        hosted = self._tablets.get(token.tablet_id)
        timeout_ms = token.timeout_ms or DEFAULT_TIMEOUT_MS
        asked = token.at if token.mode != pb.LATEST or token.at else None
        at = await hosted.replica.read_point(asked or None, timeout_ms)
        view = hosted.tablet.view()
        schema, rows = self._plan(view, token, at)
        header = pb.ScanHeader(at=at, tablet_id=token.tablet_id, server_uuid=self._uuid)
        yield flight.schema_data(schema, header.SerializeToString())
        iterator = await self._env.tasks.run(Lane.COMPUTE, rows)
        while True:
            batch = await self._env.tasks.run(Lane.COMPUTE, next, iterator, _END)
            if batch is _END:
                return
            assert isinstance(batch, pa.RecordBatch), f"a scan yields batches, not {type(batch)}"
            if batch.num_rows:
                yield flight.batch_data(batch)

    def _plan(
        self, view: View, token: pb.ScanToken, at: int
    ) -> tuple[pa.Schema, Callable[[], Iterator[pa.RecordBatch]]]:
        """Return the schema of the answer and what starts the read in lane COMPUTE."""
        if token.schema_version > view.schema.version:
            raise SchemaMismatch(
                f"the scan was planned for schema version {token.schema_version}; this replica is at "
                f"{view.schema.version}"
            )
        columns = None if token.all_columns else [ColumnId(i) for i in token.column_ids]
        for column in columns or ():
            if column not in view.schema.by_id:
                raise InvalidArgument(
                    f"the scan names column id {column}, which the table does not have"
                )
        where = (
            convert.predicate_from_proto(token.where, view.schema)
            if token.HasField("where")
            else None
        )
        chosen = view.schema.columns if columns is None else [view.schema.by_id[i] for i in columns]
        schema = arrow_schema(chosen)
        if token.keys_ipc:
            return _get(view, token, at, columns, schema)
        if token.count_only:
            return COUNT_SCHEMA, lambda: iter([_counted(view.count(at, where))])
        if token.changes:
            return _changes(view, token, at, columns, where, self._sizes(token), schema)
        rows, size = self._sizes(token)
        return schema, lambda: view.scan(
            at, columns, where, ordered=token.ordered, limit=token.limit or None,
            batch_rows=rows, batch_bytes=size, after=token.resume_after or None,
        )  # fmt: skip

    def _sizes(self, token: pb.ScanToken) -> tuple[int, int]:
        rows = min(token.batch_rows or DEFAULT_BATCH_ROWS, MAX_BATCH_ROWS)
        return rows, min(token.batch_bytes or self._batch_bytes, MAX_BATCH_BYTES)


def _counted(rows: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([rows], pa.int64())], schema=COUNT_SCHEMA)


def _get(
    view: View, token: pb.ScanToken, at: int, columns: list[ColumnId] | None, schema: pa.Schema
) -> tuple[pa.Schema, Callable[[], Iterator[pa.RecordBatch]]]:
    expected = pa.schema([pa.field(c.name, c.type) for c in view.schema.key_columns])
    keys = flight.read_message(expected, token.keys_ipc)
    if any(c.null_count for c in keys.columns):
        raise InvalidArgument("a key column is null; no row has such a key")
    fields = [*schema, pa.field("_row", pa.int64(), nullable=False)]
    return pa.schema(fields), lambda: iter([view.get(at, keys, columns)])


def _changes(
    view: View, token: pb.ScanToken, at: int, columns: list[ColumnId] | None, where: Predicate | None,
    sizes: tuple[int, int], schema: pa.Schema,
) -> tuple[pa.Schema, Callable[[], Iterator[pa.RecordBatch]]]:  # fmt: skip
    # A deleted row has its key only, so in a change feed every other column may be null.
    fields = [f.with_nullable(f.nullable or f.name not in _keys(view)) for f in schema]
    fields += [
        pa.field("_op", pa.string(), nullable=False),
        pa.field("_timestamp", pa.int64(), nullable=False),
    ]
    return pa.schema(fields), lambda: view.changes(
        token.since, at, net=token.net, where=where, columns=columns,
        batch_rows=sizes[0], batch_bytes=sizes[1],
    )  # fmt: skip


def _keys(view: View) -> set[str]:
    return {c.name for c in view.schema.key_columns}
