"""AsyncTable: handle of an open table on an event loop."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Unpack, overload

from nyala.aio.alter import AsyncAlter
from nyala.aio.change_feed import AsyncChangeFeed
from nyala.aio.hold import AsyncHold
from nyala.aio.scan import AsyncScan
from nyala.aio.session import Session
from nyala.client.calls.altering import update_table
from nyala.client.calls.handle import TableHandle
from nyala.client.calls.reading import get_rows
from nyala.client.calls.rows import PreparedRows, mixed_rows_of, rows_of
from nyala.client.calls.writing import write_rows
from nyala.client.cluster.past_schemas import PastSchema
from nyala.client.cluster.tablet_cache import OpenTable, TabletLocation
from nyala.client.core import ClientCore
from nyala.client.feed.change_feed import follow_options
from nyala.client.feed.follower import Follower, follow
from nyala.client.hold import ttl_ms
from nyala.client.modify import statements as modify
from nyala.client.modify.results import ChangeResult
from nyala.client.modify.statements import ModifyArguments
from nyala.client.read.read_spec import ReadSpec, changes_spec, scan_spec
from nyala.client.results import WriteResult
from nyala.client.transactions.staged_writes import part_of
from nyala.client.write.sequencer import OP_COLUMN
from nyala.client.write.staging import StagingTarget
from nyala.client.write.watch import WriteArguments
from nyala.common.hybrid_time import as_stamp
from nyala.common.schema import Schema


class AsyncTable(TableHandle):
    """An open table. Made by `AsyncClient.open_table` and `create_table`.

    A write that is cancelled has an unknown outcome: rows that were sent may take effect once, also later;
    rows that were not sent have no effect.
    """

    kind = "nyala.aio.AsyncTable"

    def __init__(self, session: Session, table: OpenTable, choices: Sequence[str] = ()) -> None:
        self._session = session  # first, as it is what refuses to be pickled
        super().__init__(table, choices)

    async def tablets(self) -> list[TabletLocation]:
        """Return the tablets and their replicas, read from the masters."""
        await self._session.core().locations.refresh(self._table)
        return list(self._table.tablets)

    async def insert(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """Add new rows; a row whose key exists gets the row error `already_present`."""
        return await self._write("insert", data, all_or_nothing, how)

    async def insert_ignore(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """Add new rows; rows whose key exists are left as they are."""
        return await self._write("insert_ignore", data, all_or_nothing, how)

    async def upsert(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """Add or change rows; returns and raises as `nyala.Table.upsert`.

        More than 1,000 rows are converted in a thread, and a stream or an iterable is read there, so that the
        loop goes on.

        Args:
            data: as for `nyala.Table.upsert`; or an asynchronous iterable of such data, or of dicts.
            all_or_nothing: one failing row voids all rows of its request.
            **how: as for `nyala.Table.upsert`.
        """
        return await self._write("upsert", data, all_or_nothing, how)

    async def upsert_ignore(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """As `upsert`, but a row that would change an immutable column is left as it is."""
        return await self._write("upsert_ignore", data, all_or_nothing, how)

    async def update(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """Change rows; a row whose key is absent gets the row error `not_found`."""
        return await self._write("update", data, all_or_nothing, how)

    async def update_ignore(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """Change rows; rows whose key is absent are skipped."""
        return await self._write("update_ignore", data, all_or_nothing, how)

    async def delete(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """Delete by key (other columns are ignored); an absent key gets the row error `not_found`."""
        return await self._write("delete", data, all_or_nothing, how)

    async def delete_ignore(
        self, data: Any, *, all_or_nothing: bool = False, **how: Unpack[WriteArguments]
    ) -> WriteResult:
        """Delete by key; absent keys are skipped."""
        return await self._write("delete_ignore", data, all_or_nothing, how)

    async def write(
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
        return await self._send(rows, how)

    async def _write(
        self, op: str, data: Any, all_or_nothing: bool, how: WriteArguments
    ) -> WriteResult:
        return await self._send(rows_of(self._table, op, data, all_or_nothing, how), how)

    async def _send(self, rows: PreparedRows, how: WriteArguments) -> WriteResult:
        core = self._session.core()
        stage = part_of(core, how.get("txn"))
        return await write_rows(core, core.caller, self._table, rows, stage)

    @overload
    async def delete_where(
        self, where: str, *, txn: None = None, **how: Unpack[ModifyArguments]
    ) -> ChangeResult: ...
    @overload
    async def delete_where(self, where: str, *, txn: StagingTarget) -> None: ...
    async def delete_where(
        self, where: str, *, txn: StagingTarget | None = None, **how: Unpack[ModifyArguments]
    ) -> ChangeResult | None:
        """Delete the rows that a predicate selects at one snapshot, in batches.

        If it is cancelled, the cause of the `CancelledError` is a `nyala.PartlyChanged`, whose `result` tells
        where to continue.

        Args:
            where: as for `nyala.Table.delete_where`, as all others.
            txn: a transaction: the condition is staged, and selects rows at the commit time.
            **how: `at=`, `after=`, `progress=` and `stop=`.

        Returns:
            How many rows were deleted; None with `txn=`.

        Raises:
            TransactionDenied, PartlyChanged, InvalidArgument, HistoryGone: as `nyala.Table.delete_where`.
        """
        core = self._session.core()
        return await modify.delete_rows(core, core.caller, self._table, where, txn, how)

    async def update_where(
        self, where: str, values: Mapping[str, Any], **how: Unpack[ModifyArguments]
    ) -> ChangeResult:
        """Set columns of the rows that a predicate selects at one snapshot, in batches.

        Args:
            where: as for `nyala.Table.update_where`, as all others.
            values: by column: a constant, or what `nyala.expr` returns.
            **how: as for `delete_where`, also if it is cancelled.

        Raises:
            PartlyChanged, InvalidArgument, NotFound, HistoryGone: as `nyala.Table.update_where`.
        """
        core = self._session.core()
        return await modify.update_rows(core, core.caller, self._table, where, values, how)

    async def alter(self) -> AsyncAlter:
        """Read the present definition and start an alteration; nothing happens before its `commit`."""
        await update_table(self._session.core(), self._table)
        return AsyncAlter(self._session, self._table)

    async def hold(
        self, at: int | datetime | None = None, ttl: float | timedelta = 3600
    ) -> AsyncHold:
        """Keep a snapshot and all later times readable, regardless of `history_max_age_s`.

        Args:
            at: a hybrid time or an aware datetime; None: now.
            ttl: seconds (or a timedelta), at most 7 days, after which it ends by itself.

        Returns:
            The hold: `release` it, or use it in an `async with`.

        Raises:
            HistoryGone, Unavailable: as `nyala.Table.hold`.
        """
        lives_ms, moment = ttl_ms(ttl), None if at is None else max(1, as_stamp(at))
        holding = await self._session.core().hold(self._table, moment, lives_ms)
        return AsyncHold(self._session, holding)

    @overload
    async def get(
        self, key: Mapping[str, Any], columns: Sequence[str] | None = None
    ) -> dict[str, Any] | None: ...
    @overload
    async def get(
        self, key: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None
    ) -> list[dict[str, Any] | None]: ...
    async def get(
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
        core = self._session.core()
        return await get_rows(core, core.caller, self._table, self._keys, key, columns)

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
    ) -> AsyncScan:
        """Describe a read of rows; it runs when its rows are requested: `async for batch in table.scan()`.

        Args:
            columns: names wanted, in this order; None: all.
            where: a small SQL expression.
            at: snapshot, a hybrid time or an aware datetime; None: one moment, fixed as the scan begins.
            limit: most rows, 0 for none; None: all.
            order: by primary key.
            mode: as for `nyala.Table.scan`.
            max_age_ms: for mode "stale": how old the rows of each tablet may be.

        Raises:
            NotFound, InvalidArgument, HistoryGone: as `nyala.Table.scan`; with `at` when its rows are
                requested.
        """

        def spec(columns_then: Schema) -> ReadSpec:
            return scan_spec(columns_then, columns, where, at, limit, order, mode, max_age_ms)

        return AsyncScan(self._session, self._table, spec, at)

    def changes(
        self,
        since: int | datetime,
        until: int | datetime | None = None,
        net: bool = True,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        before: bool = False,
    ) -> AsyncScan:
        """Describe the change feed of (since, until]: rows plus `_op` and `_timestamp`.

        Args:
            since: exclusive lower end.
            until: inclusive upper end, whose columns the rows have; None: now.
            net: one row per key that changed; else every version.
            columns: as for `nyala.Table.changes`.
            where: as for `nyala.Table.changes`.
            before: add the struct `_before`, the row before the change.
        """

        def spec(columns_then: Schema) -> ReadSpec:
            return changes_spec(columns_then, since, until, net, columns, where, before=before)

        return AsyncScan(self._session, self._table, spec, until)

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
    ) -> AsyncChangeFeed:
        """Follow the changes without end: an async iterator of batches; see `nyala.Table.follow`.

        Args:
            since: exclusive lower end; None: the time at which it begins.
            columns: as all others: as for `nyala.Table.follow`.
            where: a small SQL expression.
            before: add the struct `_before`.
            poll: longest time in seconds between two reads.
            hold: seconds for which history is held for this reader.
            heartbeat: seconds without changes after which an empty batch comes; None: never.
        """
        options, table = follow_options(poll, hold, heartbeat), self._table

        async def begin(core: ClientCore) -> Follower:
            then = PastSchema(table.schema)
            if since is not None:
                then = await core.past.at(table, max(1, as_stamp(since)))
            spec = changes_spec(then.schema, since or 0, None, False, columns, where, before=before)
            spec = replace(spec, schema=then.schema, past=then.dropped)
            return await follow(core, table, spec, options, now=since is None)

        return AsyncChangeFeed(self._session, begin)

    async def count(self) -> int:
        """Return the number of rows as of now."""
        return await self.scan().count()
