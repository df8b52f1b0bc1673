"""Table: handle of an open table. Methods may be called from any thread and block."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Unpack, overload

from nyala.client.alter import Alter
from nyala.client.caller import finished
from nyala.client.calls.altering import update_table
from nyala.client.calls.handle import TableHandle
from nyala.client.calls.reading import get_rows
from nyala.client.calls.rows import PreparedRows, mixed_rows_of, rows_of
from nyala.client.calls.soon_writes import Soon, SoonArguments
from nyala.client.calls.writing import write_rows
from nyala.client.cluster.past_schemas import PastSchema
from nyala.client.cluster.tablet_cache import OpenTable, TabletLocation
from nyala.client.connection import Connection
from nyala.client.feed.change_feed import ChangeFeed, follow_options
from nyala.client.feed.follower import Follower, follow
from nyala.client.hold import Hold, Holding, ttl_ms
from nyala.client.modify import statements as modify
from nyala.client.modify.results import ChangeResult
from nyala.client.modify.statements import ModifyArguments
from nyala.client.read.read_spec import ReadSpec, changes_spec, scan_spec
from nyala.client.results import WriteResult
from nyala.client.scan import Scan
from nyala.client.transactions.staged_writes import part_of
from nyala.client.write.sequencer import OP_COLUMN
from nyala.client.write.staging import StagingTarget
from nyala.client.write.watch import WriteArguments
from nyala.common.hybrid_time import as_stamp


class Table(TableHandle):
    """An open table. Made by `Client.table` and `Client.create_table`."""

    kind = "nyala.Table"

    def __init__(
        self, connection: Connection, table: OpenTable, choices: Sequence[str] = ()
    ) -> None:
        self._connection = connection  # first, as it is what refuses to be pickled
        super().__init__(table, choices)

    def tablets(self) -> list[TabletLocation]:
        """Return the tablets and their replicas, read from the masters."""
        locations = self._connection.core.locations
        self._connection.run(locations.refresh(self._table))
        return list(self._table.tablets)

    def insert(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """Add new rows; a row whose key exists gets the row error `already_present`."""
        return self._write("insert", data, all_or_nothing, how)

    def insert_ignore(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """Add new rows; rows whose key exists are left as they are."""
        return self._write("insert_ignore", data, all_or_nothing, how)

    def upsert(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """Add or change rows: columns given are set, others keep their value (or default, or null).

        Args:
            data: anything with `__arrow_c_stream__`, a RecordBatch, a pandas frame, a list of dicts, a
                pyarrow dataset; or an iterable of these, or of dicts. A stream or an iterable is written as
                it comes: its next piece is fetched when there is room for it.
            all_or_nothing: one failing row voids all rows of its request: per tablet, and per
                batch of at most 10,000 rows or 1 MiB.
            **how: `nan_is_null`: True: NaN becomes null; False: NaN of a pandas frame is stored in float and
                double columns; not given: NaN of a pandas frame is a missing value, thus null, other NaN is
                stored. `round_decimals=True`: decimals are rounded to the nearest values of float and double
                columns; otherwise they are rejected. `progress=True` draws a bar in a terminal or a notebook;
                a function is called with the number of rows that were accepted so far. `stop=`, an event,
                ends the call when it is set: nothing more is read, what was read is written, and the result
                has `next_row`. `txn=`, a transaction or a part of one: the rows are staged, and become
                visible when it commits.

        Returns:
            Acknowledged: durable on a majority of each tablet's replicas. Row errors are in `.errors`.

        Raises:
            PartlyWritten: some rows are written, others not; it has their positions.
            OutcomeUnknown: all rows went in one request that was not answered; it may have taken effect.
            SchemaMismatch: a column that is unknown or does not convert without loss; nothing took effect.
            TimedOut: no leader took any row in time; nothing took effect.
        """
        return self._write("upsert", data, all_or_nothing, how)

    def upsert_ignore(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """As `upsert`, but a row that would change an immutable column is left as it is."""
        return self._write("upsert_ignore", data, all_or_nothing, how)

    def update(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """Change rows; a row whose key is absent gets the row error `not_found`."""
        return self._write("update", data, all_or_nothing, how)

    def update_ignore(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """Change rows; rows whose key is absent are skipped."""
        return self._write("update_ignore", data, all_or_nothing, how)

    def delete(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """Delete by key (other columns are ignored); an absent key gets the row error `not_found`."""
        return self._write("delete", data, all_or_nothing, how)

    def delete_ignore(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """Delete by key; absent keys are skipped."""
        return self._write("delete_ignore", data, all_or_nothing, how)

    def write(
        self,
        data: Any,
        op_column: str = OP_COLUMN,
        *,
        all_or_nothing: bool = False,
        **how: Unpack[WriteArguments],
    ) -> WriteResult:
        """Mixed operations in row order: `op_column` names each row's op ("insert", "delete", ...).

        Args:
            data: rows, as for `upsert`.
            op_column: column with the name of each row's operation.
            all_or_nothing: one failing row voids the others of its request.
            **how: as for `upsert`.

        Raises:
            InvalidArgument: an op that is null or unknown; nothing was sent.
        """
        rows = mixed_rows_of(self._table, data, op_column, all_or_nothing, how)
        return self._send(rows, how)

    def insert_soon(self, data: Any, **how: Unpack[SoonArguments]) -> Soon:
        """As `insert`; see `upsert_soon`."""
        return self._write_soon("insert", data, how)

    def upsert_soon(self, data: Any, **how: Unpack[SoonArguments]) -> Soon:
        """Begin to add or change rows, without waiting for it.

        The rows are converted, and refused if they are wrong, before it returns. It waits for room while the
        client has `write_ahead_bytes` of such rows that are not acknowledged. Writes that are begun before
        the result of the first is known may take effect in any order.

        Args:
            data: as for `upsert`, in memory.
            **how: `all_or_nothing=`, and the others of `upsert`.

        Returns:
            The future of the result, or of the errors that `upsert` raises. Its callbacks run in the client's
            own thread, and must not call the client. Its `cancel` has the outcome of an interrupted write:
            what was not sent has no effect, what was sent may take effect.

        Raises:
            SchemaMismatch, InvalidArgument: wrong rows, a stream, or a closed client; nothing was sent.
        """
        return self._write_soon("upsert", data, how)

    def update_soon(self, data: Any, **how: Unpack[SoonArguments]) -> Soon:
        """As `update`; see `upsert_soon`."""
        return self._write_soon("update", data, how)

    def delete_soon(self, data: Any, **how: Unpack[SoonArguments]) -> Soon:
        """As `delete`; see `upsert_soon`."""
        return self._write_soon("delete", data, how)

    def _write_soon(self, op: str, data: Any, how: SoonArguments) -> Soon:
        whole = how.pop("all_or_nothing", False)
        rows = rows_of(self._table, op, data, whole, how)
        stage = part_of(self._connection.core, how.get("txn"))
        return self._connection.soon.write(self._table, rows, stage)

    def _write(self, op: str, data: Any, all_or_nothing: bool, how: WriteArguments) -> WriteResult:
        return self._send(rows_of(self._table, op, data, all_or_nothing, how), how)

    def _send(self, rows: PreparedRows, how: WriteArguments) -> WriteResult:
        stage = part_of(self._connection.core, how.get("txn"))
        return finished(write_rows(*self._connection.call, self._table, rows, stage))

    @overload
    def delete_where(
        self, where: str, *, txn: None = None, **how: Unpack[ModifyArguments]
    ) -> ChangeResult: ...
    @overload
    def delete_where(self, where: str, *, txn: StagingTarget) -> None: ...
    def delete_where(
        self, where: str, *, txn: StagingTarget | None = None, **how: Unpack[ModifyArguments]
    ) -> ChangeResult | None:
        """Delete the rows that a predicate selects at one snapshot, in key order, in batches.

        A selected row is deleted by key, also if another writer has changed it since the snapshot. With
        `txn=` the condition is staged, and the rows that it selects at the commit time are deleted then, all
        at one time: also those that others write before the commit, and those that the transaction has
        written before this call.

        Args:
            where: as for `scan`; "true" selects every row.
            txn: a transaction or a part of one; the other arguments cannot be given with it.
            **how: `at=`, the snapshot, a hybrid time or an aware datetime (not given: now); `after=`, the
                position after which to begin: `after` of an earlier result, with its `at`. `progress=True`
                draws a bar in a terminal or a notebook; a function is called with the number of rows so far.
                `stop=`, an event, ends the call after the present batch when it is set.

        Returns:
            How many rows were deleted; None with `txn=`.

        Raises:
            TransactionDenied: with `txn=`, a tablet refused the condition; the transaction cannot commit.
            PartlyChanged: some rows are deleted, or may be, others not; `result` has `at` and `after`.
            InvalidArgument: a `where` that cannot be read, and other wrong arguments.
            HistoryGone: the snapshot cannot be read any more.
        """
        return finished(modify.delete_rows(*self._connection.call, self._table, where, txn, how))

    def update_where(
        self, where: str, values: Mapping[str, Any], **how: Unpack[ModifyArguments]
    ) -> ChangeResult:
        """Set columns of the rows that a predicate selects at one snapshot, in key order, in batches.

        The new values are calculated from the snapshot; they are written also if another writer has changed
        the row since. A row that was deleted since is not inserted again.

        Args:
            where: as for `scan`; "true" selects every row.
            values: by column: a constant, or an expression over columns, as `nyala.expr("price * 1.1")`.
            **how: as for `delete_where`.

        Raises:
            PartlyChanged: some rows are updated, or may be, others not; `result` has `at` and `after`.
            InvalidArgument: a key column, a value that its column does not take, and other wrong arguments.
            NotFound: an unknown column.
            HistoryGone: the snapshot cannot be read any more.
        """
        return finished(modify.update_rows(*self._connection.call, self._table, where, values, how))

    @overload
    def get(
        self, key: Mapping[str, Any], columns: Sequence[str] | None = None
    ) -> dict[str, Any] | None: ...
    @overload
    def get(
        self, key: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None
    ) -> list[dict[str, Any] | None]: ...
    def get(
        self,
        key: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        columns: Sequence[str] | None = None,
    ) -> dict[str, Any] | list[dict[str, Any] | None] | None:
        """Look up rows by primary key; linearizable.

        Args:
            key: a dict of the key columns, or a list of them.
            columns: those wanted; None: all.

        Returns:
            The row as a dict, None if absent; for a list of keys, a list in the same order.
        """
        return finished(get_rows(*self._connection.call, self._table, self._keys, key, columns))

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        at: int | datetime | None = None,
        limit: int | None = None,
        order: bool = False,
        *,
        mode: str = "snapshot",
        max_age_ms: int | None = None,
    ) -> Scan:
        """Describe a read of rows; it runs when its rows are requested.

        Args:
            columns: names wanted, in this order; None: all.
            where: a small SQL expression, for instance "value > 3 and host in ('a', 'b')".
            at: snapshot, a hybrid time or an aware datetime, with the columns that the table had then; None:
                one moment, fixed as the scan begins, that includes every write acknowledged before.
            limit: most rows, 0 for none; None: all.
            order: by primary key.
            mode: "snapshot" (repeatable); "latest" (each tablet as its leader has it, linearizable per
                tablet); "read_your_writes" (at least all that this client wrote or saw); "stale"
                (within `max_age_ms`).
            max_age_ms: for mode "stale": how old the rows of each tablet may be; any replica may serve them,
                and `Scan.age_ms` tells how old they were.

        Raises:
            NotFound: an unknown column.
            InvalidArgument: a `where` that cannot be read, a wrong mode or limit.
            HistoryGone: the columns at `at` are not kept any more.
        """
        then = _columns_at(self._connection, self._table, at)
        spec = scan_spec(then.schema, columns, where, at, limit, order, mode, max_age_ms)
        return Scan(self._connection, self._table, _of(then, spec))

    def alter(self) -> Alter:
        """Start an alteration; nothing happens before its `commit`."""
        core = self._connection.core
        self._connection.run(update_table(core, self._table))
        return Alter(self._connection, self._table)

    def changes(
        self,
        since: int | datetime,
        until: int | datetime | None = None,
        net: bool = True,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        before: bool = False,
    ) -> Scan:
        """Describe the change feed of (since, until]: rows plus `_op` and `_timestamp`.

        The changes of each tablet are ordered by time, then by key; the tablets follow one another.

        Args:
            since: exclusive lower end.
            until: inclusive upper end, whose columns the rows have; None: now.
            net: one row per key that changed, 'insert', 'update' or 'delete'; else every version.
            columns: names wanted; key columns are always there.
            where: as for `scan`; the changes are those of the table of matching rows: a row that no longer
                matches is a 'delete', one that matches from now on is an 'insert'.
            before: add the struct `_before`, the row before the change; null for an 'insert'.
        """
        then = _columns_at(self._connection, self._table, until)
        spec = changes_spec(then.schema, since, until, net, columns, where, before=before)
        return Scan(self._connection, self._table, _of(then, spec))

    def follow(
        self,
        since: int | datetime | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        before: bool = False,
        poll: float | timedelta = 2.0,
        hold: float | timedelta = 3600,
        heartbeat: float | timedelta | None = None,
    ) -> ChangeFeed:
        """Follow the changes without end: an iterator of batches of every version, in order of time.

        The order is that of the whole table, so the copy that a reader makes of its rows equals the table at
        each `ChangeBatch.through` that is above the one before. `ChangeBatch.schema_changed` tells when
        columns change. Failures of servers, moved tablets, and added or dropped ranges do not end it.

        Args:
            since: exclusive lower end: the `through` of a batch, for example; None: now. The feed begins with
                the columns that the table had then.
            columns: as for `changes`.
            where: as for `changes`.
            before: as for `changes`.
            poll: longest time in seconds between two reads while servers announce no change.
            hold: seconds for which history is held for this reader, beyond the age of `since`: so far may it
                fall behind, or be stopped, without losing changes. 0: history is not held.
            heartbeat: seconds without changes after which an empty batch tells a new `through`; None: never.

        Raises:
            HistoryGone: the history after `since` is gone.
            InvalidArgument: a time in the future, or another argument that makes no sense.
        """
        then = _columns_at(self._connection, self._table, since)
        spec = changes_spec(then.schema, since or 0, None, False, columns, where, before=before)
        spec = _of(then, spec)
        options = follow_options(poll, hold, heartbeat)
        core = self._connection.core
        follower = self._connection.acquire(
            lambda: follow(core, self._table, spec, options, now=since is None), Follower.close
        )
        return ChangeFeed(self._connection, follower)

    def hold(self, at: int | datetime | None = None, ttl: float | timedelta = 3600) -> Hold:
        """Keep a snapshot and all later times readable, regardless of `history_max_age_s`.

        Args:
            at: a hybrid time or an aware datetime; None: now.
            ttl: seconds (or a timedelta), at most 7 days, after which it ends by itself.

        Returns:
            The hold: `release` it, or use it in a `with`.

        Raises:
            HistoryGone: the moment cannot be read any more.
            Unavailable: no majority of some tablet's replicas answers.
        """
        lives_ms, moment = ttl_ms(ttl), None if at is None else max(1, as_stamp(at))
        connection, core = self._connection, self._connection.core
        holding = connection.acquire(
            lambda: core.hold(self._table, moment, lives_ms), Holding.release
        )
        return Hold(holding, lambda: connection.finish(holding.release()))

    def count(self) -> int:
        """Return the number of rows as of now."""
        return self.scan().count()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.scan().__arrow_c_stream__(requested_schema)


def _columns_at(connection: Connection, table: OpenTable, at: int | datetime | None) -> PastSchema:
    """Return the columns of a read at a time; None: of now, as the table was opened.

    Args:
        connection: of the table.
        table: the open table.
        at: hybrid time, or an aware datetime.
    """
    if at is None:
        return PastSchema(table.schema)
    return connection.run(connection.core.past.at(table, max(1, as_stamp(at))))


def _of(then: PastSchema, spec: ReadSpec) -> ReadSpec:
    return replace(spec, schema=then.schema, past=then.dropped)
