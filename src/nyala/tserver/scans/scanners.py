"""Execution of scan tokens: choose the snapshot with the replica, read an immutable view, stream batches.

A stream keeps its view while the client reads, at the client's speed, and ends with the client's connection.
At most `scanners_max` are open at a time.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from nyala.common.errors import Corrupt, InvalidArgument, RangesChanged, SchemaMismatch, Unavailable
from nyala.common.expressions.bounds import KeyBounds
from nyala.common.expressions.predicate import Predicate
from nyala.common.ids import ColumnId
from nyala.common.options import Options
from nyala.common.schema import Column, arrow_schema
from nyala.env.env import Env
from nyala.env.tasks import Lane
from nyala.replica.replica import Replica
from nyala.tablet.files.manifest import TabletInfo
from nyala.tablet.read.changes import schema_of
from nyala.tablet.read.view import View
from nyala.tserver.scans.open_scans import OpenScan, OpenScans
from nyala.tserver.scans.scan_memory import ScanMemory
from nyala.tserver.tablets import HostedTablet, Tablets
from nyala.wire import convert, flight
from nyala.wire.flight_data import FlightData
from nyala.wire.proto import nyala_pb2 as pb

MAX_BATCH_ROWS = 1_000_000
MAX_ROWS = 1 << 62
MAX_BATCH_BYTES = 16 << 20
COUNT_SCHEMA = pa.schema([pa.field("_count", pa.int64(), nullable=False)])


class Scanners:
    """Runs the scans of this server's tablets. Used on the event loop.

    Args:
        env: lanes.
        tablets: tablets of this server.
        server_uuid: for the header of each scan.
        options: default sizes and deadlines.
        memory: accounting of all scans.
        scans: the open scans, listed and limited.
    """

    def __init__(
        self, env: Env, tablets: Tablets, server_uuid: str, options: Options, memory: ScanMemory,
        scans: OpenScans,
    ) -> None:  # fmt: skip
        self._env = env
        self._tablets = tablets
        self._uuid = server_uuid
        self._options = options
        self._memory = memory
        self._scans = scans

    async def run(self, token: pb.ScanToken) -> AsyncIterator[FlightData]:
        """Yield the schema (with a `ScanHeader`), then batches, all of one snapshot.

        Raises:
            NotFound: no such tablet here.
            NotLeader: another replica leads; details name it. In mode STALE: the data here is too old.
            HistoryGone: the snapshot is before the history that is kept.
            InvalidArgument: the token does not fit the tablet.
            Throttled: too many scans are open.
            RangesChanged: planned from older ranges of the table than those at its snapshot.
        """
        with self._scans.hold(token.tablet_id, _kind(token)) as scan:
            async for data in self._run(token, scan):
                yield data

    async def _run(self, token: pb.ScanToken, scan: OpenScan) -> AsyncIterator[FlightData]:
        hosted = self._tablets.get(token.tablet_id)
        timeout_ms = token.timeout_ms or self._options.read_timeout_ms
        age_ms = 0
        if token.mode == pb.STALE:
            at, age_ms = await hosted.replica.stale_point(
                token.max_age_ms, timeout_ms, min_time=hosted.tablet.horizon
            )
        elif token.at:
            at = await hosted.replica.read_point(token.at, timeout_ms)
        else:
            at = await hosted.replica.latest_point(timeout_ms)
        scan.at = at
        asked = token.batch_bytes or self._memory.batch_bytes()
        token.batch_bytes = min(asked, MAX_BATCH_BYTES)
        with self._memory.open(hosted.tablet, 0 if token.count_only else token.batch_bytes):
            async for data in self._stream(hosted, token, age_ms, scan):
                yield data

    async def _stream(
        self, hosted: HostedTablet, token: pb.ScanToken, age_ms: int, scan: OpenScan
    ) -> AsyncIterator[FlightData]:
        at = scan.at
        view = hosted.tablet.view()
        check_ranges(view, token, at)
        view = view_at(view, token, at)
        through = at
        if token.changes and token.limit:
            limit = min(token.limit, MAX_ROWS)
            through = await self._read(hosted.replica, view.changes_end, token.since, at, limit)
        schema, rows = self._plan(view, token, through if token.changes else at)
        header = pb.ScanHeader(
            at=at, tablet_id=token.tablet_id, server_uuid=self._uuid, age_ms=age_ms,
            schema_version=view.schema.version, through=through,
        )  # fmt: skip
        if token.ordered:
            names = dict(zip(token.column_ids, token.column_names, strict=False))
            header.key_columns.extend(names.get(c.id, c.name) for c in view.schema.key_columns)
        yield flight.schema_data(_named(schema, token), header.SerializeToString())
        iterator = await self._read(hosted.replica, rows)
        while (found := await self._read(hosted.replica, _next_data, iterator, view)) is not None:
            data, sent = found
            yield data
            scan.rows += sent

    async def _read(self, replica: Replica, work: Callable[..., Any], *args: Any) -> Any:
        """Read files of a replica in lane COMPUTE; damage fails the replica."""
        with failing_on_damage(replica):
            return await self._env.tasks.run(Lane.COMPUTE, work, *args)

    def _plan(
        self, view: View, token: pb.ScanToken, at: int
    ) -> tuple[pa.Schema, Callable[[], Iterator[pa.RecordBatch]]]:
        """Return the schema of the result, and a function that starts the read in lane COMPUTE."""
        columns = None if token.all_columns else [ColumnId(i) for i in token.column_ids]
        if token.count_only:
            columns = []
        where = check_predicate(view, token, columns)
        schema = arrow_schema(_chosen(view, columns))
        within = bounds_of(token)
        if token.keys_ipc:
            return _get(view, token, at, columns, schema)
        if token.count_only:
            return COUNT_SCHEMA, lambda: iter([_counted(view.count(at, where, within))])
        if token.changes:
            sizes = self._batch_rows(token), token.batch_bytes
            return _changes(view, token, at, columns, where, sizes)
        return schema, lambda: view.scan(
            at, columns, where, ordered=token.ordered, limit=min(token.limit, MAX_ROWS) or None,
            batch_rows=self._batch_rows(token), batch_bytes=token.batch_bytes, within=within,
        )  # fmt: skip

    def _batch_rows(self, token: pb.ScanToken) -> int:
        return min(token.batch_rows or self._options.scan_batch_rows, MAX_BATCH_ROWS)


@contextmanager
def failing_on_damage(replica: Replica) -> Iterator[None]:
    """Fail a replica if its files are damaged."""
    try:
        yield
    except Corrupt as err:
        replica.fail(err)
        raise Unavailable(
            f"the replica of tablet {replica.group} here is FAILED: {err.message}; try another one"
        ) from err


def check_ranges(view: View, token: pb.ScanToken, at: int) -> None:
    """Reject a read that was planned from other ranges than the table had at its snapshot.

    A look-up by key only needs the tablet of its key, as long as its range exists.

    Args:
        view: view of the tablet.
        token: the scan token.
        at: hybrid time of the read.

    Raises:
        RangesChanged: the plan may lack tablets with rows at that time.
    """
    info = view.info
    if token.keys_ipc:
        check_present(info, at)
        return
    newer = info.newer_ranges(token.ranges_version, at)
    if newer:
        raise RangesChanged(
            f"the read was planned from version {token.ranges_version} of the ranges of table "
            f"{info.table_name!r}, which had version {newer} at the time of the read; plan it "
            "again: repeat the "
            "scan, or make new tokens",
            {"version": str(newer)},
        )


def check_present(info: TabletInfo, at: int) -> None:
    """Reject look-ups in a tablet whose range was dropped: another tablet may have the keys.

    Raises:
        RangesChanged: the range was dropped at that time.
    """
    if 0 < info.retired_at <= at:
        raise RangesChanged(
            f"the range of tablet {info.tablet_id} was dropped; read the table's ranges again"
        )


def bounds_of(token: pb.ScanToken) -> KeyBounds:
    """Return the key bounds of a token, reduced to the part that is not read yet.

    Raises:
        InvalidArgument: invalid bounds.
    """
    lower, upper = token.key_lower, token.key_upper
    if (lower or upper) and (token.changes or token.keys_ipc):
        raise InvalidArgument(
            "key bounds are allowed in scans and counts only; make the token without them"
        )
    if upper and lower >= upper:
        raise InvalidArgument(
            f"the token begins at key {lower.hex()} and ends before {upper.hex()}, which is not above it; "
            "make new tokens"
        )
    if token.resume_after:
        lower = max(lower, token.resume_after + b"\0")
    return KeyBounds(lower, upper or None)


def view_at(view: View, token: pb.ScanToken, at: int) -> View:
    """Return the view that a token is read from: with the columns of its time, if some were dropped since.

    Args:
        view: view of the tablet.
        token: the scan token.
        at: hybrid time of the read.

    Raises:
        HistoryGone: the time is below the horizon, so that values of dropped columns may have been removed.
        InvalidArgument: the token's definition of a column is invalid.
    """
    gone = bool(view.info.dropped or token.past_columns)
    if not gone or token.schema_version >= view.schema.version:
        return view
    return view.at_time(at, [convert.column_from_proto(c) for c in token.past_columns])


def _chosen(view: View, columns: list[ColumnId] | None) -> list[Column]:
    if columns is None:
        return list(view.info.schema.columns)
    return [view.schema.by_id[i] for i in columns]


def check_predicate(
    view: View, token: pb.ScanToken, columns: list[ColumnId] | None
) -> Predicate | None:
    """Return the predicate of a token, checked against the tablet's schema.

    Args:
        view: view of the tablet.
        token: the scan token.
        columns: ids of the columns to read; None: all.

    Raises:
        Unavailable: planned for a newer schema version, which this replica has not applied yet.
        SchemaMismatch: planned for all columns of an older version, or with columns that were dropped since.
        InvalidArgument: unknown columns, or an invalid predicate.
    """
    planned, now = token.schema_version, view.schema.version
    if planned > now:
        raise Unavailable(
            f"the scan was planned for schema version {planned}; this replica has version {now} and "
            "has not applied the alteration yet; retry"
        )
    if columns is None and planned < now:
        raise SchemaMismatch(
            f"the scan was planned for all columns of schema version {planned}; the table has version "
            f"{now}; open the table again, or name the columns"
        )
    named = 0 if token.count_only else len(token.column_names)
    if named not in (0, len(columns or ())):
        raise InvalidArgument(f"{len(columns or ())} columns with {named} names; make a new token")
    try:
        for column in columns or ():
            if column not in view.schema.by_id:
                raise InvalidArgument(
                    f"the scan names column id {column}, which the table does not have"
                )
        if not token.HasField("where"):
            return None
        return convert.predicate_from_proto(token.where, view.schema)
    except InvalidArgument as err:
        if planned == now:
            raise
        raise SchemaMismatch(
            f"{err.message}: it was planned for schema version {planned}, the table has version "
            f"{now}; open the "
            "table again"
        ) from err


def _named(schema: pa.Schema, token: pb.ScanToken) -> pa.Schema:
    """Return the schema of a result with the column names that the client used."""
    if token.count_only or not token.column_names:
        return schema
    names = [*token.column_names, *schema.names[len(token.column_names) :]]
    fields = [f.with_name(n) for f, n in zip(schema, names, strict=True)]
    if token.before:
        row = zip(token.column_names, fields[-1].type, strict=True)
        fields[-1] = fields[-1].with_type(pa.struct([f.with_name(n) for n, f in row]))
    return pa.schema(fields)


def _kind(token: pb.ScanToken) -> str:
    if token.keys_ipc:
        return "keys"
    if token.count_only:
        return "count"
    return "changes" if token.changes else "rows"


def _next_data(iterator: Iterator[pa.RecordBatch], view: View) -> tuple[FlightData, int] | None:
    """Return the next rows as a message, and their number. Lane COMPUTE.

    They are copied because a batch may be in mapped files.
    """
    for batch in iterator:
        if batch.num_rows:
            data = flight.batch_data(batch)
            view.check()
            return data, batch.num_rows
    view.check()
    return None


def _counted(rows: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([rows], pa.int64())], schema=COUNT_SCHEMA)


def _get(
    view: View, token: pb.ScanToken, at: int, columns: list[ColumnId] | None, schema: pa.Schema
) -> tuple[pa.Schema, Callable[[], Iterator[pa.RecordBatch]]]:
    expected = pa.schema([pa.field(c.name, c.type) for c in view.schema.key_columns])
    keys = flight.read_message(expected, token.keys_ipc)
    if any(c.null_count for c in keys.columns):
        raise InvalidArgument("a key column is null, and no row has such a key; remove it")
    fields = [*schema, pa.field("_row", pa.int64(), nullable=False)]
    return pa.schema(fields), lambda: iter([view.get(at, keys, columns)])


def _changes(
    view: View, token: pb.ScanToken, at: int, columns: list[ColumnId] | None, where: Predicate | None,
    sizes: tuple[int, int],
) -> tuple[pa.Schema, Callable[[], Iterator[pa.RecordBatch]]]:  # fmt: skip
    chosen = _chosen(view, columns)
    return schema_of(chosen, view.schema.key_ids, before=token.before), lambda: view.changes(
        token.since, at, net=token.net, where=where, columns=columns, before=token.before,
        batch_rows=sizes[0], batch_bytes=sizes[1],
    )  # fmt: skip
