"""Table: what users hold. Every method may be called from any thread; each returns when acknowledged."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from nyala.client.alter import Alter
from nyala.client.hold import Hold, ttl_ms
from nyala.client.read.read_spec import ReadSpec
from nyala.client.scan import Scan
from nyala.client.table_gets import TableGets, names_of
from nyala.client.writing import TableWrites
from nyala.common.errors import InvalidArgument
from nyala.common.hybrid_time import as_stamp
from nyala.common.where import parse

MODES = ("latest", "snapshot", "read_your_writes", "stale")


class Table(TableWrites, TableGets):
    """An open table. Made by `Client.table` and `Client.create_table`."""

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
        """Describe a read of rows; it runs when its rows are asked for.

        Args:
            columns: names wanted, in this order; None: all.
            where: a small SQL expression, for instance "value > 3 and host in ('a', 'b')".
            at: snapshot, a hybrid time or an aware datetime; None: one moment, fixed as the scan
                begins, that includes every write acknowledged before.
            limit: most rows.
            order: by primary key.
            mode: "snapshot" (repeatable); "latest" (each tablet as its leader has it, linearizable per
                tablet); "read_your_writes" (at least all that this client wrote or saw); "stale"
                (within `max_age_ms`).
            max_age_ms: for mode "stale": how old the rows of each tablet may be; any replica may serve them,
                and `Scan.age_ms` tells how old they were.

        Raises:
            NotFound: an unknown column.
            InvalidArgument: a `where` that cannot be read, a wrong mode or limit.
        """
        _check_mode(mode, at, max_age_ms)
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, int) or limit < 1
        ):
            raise InvalidArgument(f"limit={limit!r}: a limit is a positive number of rows")
        names = names_of(self._table.schema, columns)
        if (
            order
            and names is not None
            and (missing := [k for k in self.primary_key if k not in names])
        ):
            raise InvalidArgument(
                f"an ordered scan needs the key columns; add {', '.join(missing)}"
            )
        spec = ReadSpec(
            columns=names,
            where=None if where is None else parse(where, self._table.schema),
            latest=mode in ("latest", "stale"),
            max_age_ms=max_age_ms,
            at=0 if at is None else max(1, as_stamp(at)),  # 0 would mean now
            limit=limit or 0,
            ordered=order,
        )
        return Scan(self._connection, self._table, spec)

    def alter(self) -> Alter:
        """Describe what the table shall become; nothing happens before its `commit`."""
        core = self._connection.core
        fresh = self._connection.run(
            core.locations.open("", core.options.timeout_ms, table_id=self.id)
        )
        self._table.follow(fresh)
        return Alter(self._connection, self._table)

    def changes(
        self,
        since: int | datetime,
        until: int | datetime | None = None,
        net: bool = True,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
    ) -> Scan:
        """Describe the change feed of (since, until]: rows plus `_op` and `_timestamp`.

        Args:
            since: exclusive lower end.
            until: inclusive upper end; None: now.
            net: one row per key that changed, 'insert', 'update' or 'delete'; else every version.
            columns: names wanted; key columns are always there.
            where: as for `scan`, over the new rows.
        """
        names = names_of(self._table.schema, columns)
        if names is not None:
            names = (*self.primary_key, *(n for n in names if n not in self.primary_key))
        spec = ReadSpec(
            columns=names,
            where=None if where is None else parse(where, self._table.schema),
            at=0 if until is None else max(1, as_stamp(until)),
            changes=True,
            since=as_stamp(since),
            net=net,
        )
        if spec.at and spec.at < spec.since:
            raise InvalidArgument(f"changes: until ({spec.at}) lies before since ({spec.since})")
        return Scan(self._connection, self._table, spec)

    def hold(self, at: int | datetime | None = None, ttl: float | timedelta = 3600) -> Hold:
        """Keep the history from a moment on readable, whatever `history_max_age_s` says, for long readers.

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
        run, core = self._connection.run, self._connection.core
        holding = run(core.hold(self._table, moment, lives_ms))
        return Hold(holding, lambda: run(holding.release()))

    def count(self) -> int:
        """Return the number of rows as of now."""
        return self.scan().count()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.scan().__arrow_c_stream__(requested_schema)


def _check_mode(mode: str, at: object, max_age_ms: int | None) -> None:
    if mode not in MODES:
        raise InvalidArgument(f"mode={mode!r}; modes are: {', '.join(MODES)}")
    if at is not None and mode != "snapshot":
        raise InvalidArgument(f"at= names a snapshot, so mode cannot be {mode!r}")
    if (mode == "stale") != (max_age_ms is not None):
        raise InvalidArgument('mode="stale" and max_age_ms= go together')
    if max_age_ms is not None and (
        isinstance(max_age_ms, bool)
        or not isinstance(max_age_ms, int)
        or not 0 <= max_age_ms < 1 << 63
    ):
        raise InvalidArgument(f"max_age_ms={max_age_ms!r}: an age is a number of milliseconds")
