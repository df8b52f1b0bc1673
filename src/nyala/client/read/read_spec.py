"""The specification of a read: checked arguments of `Table.scan` and `Table.changes`, and scan tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from nyala.client.checks import check_list, is_int
from nyala.client.cluster.tablet_cache import OpenTable, TabletLocation
from nyala.common.errors import InvalidArgument
from nyala.common.expressions.predicate import FALSE, Predicate, columns_of
from nyala.common.expressions.where import parse
from nyala.common.hybrid_time import as_stamp
from nyala.common.schema import Column, Schema, arrow_schema
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb

_FEED = (
    pa.field("_op", pa.string(), nullable=False),
    pa.field("_timestamp", pa.int64(), nullable=False),
)
MODES = ("latest", "snapshot", "read_your_writes", "stale")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """The arguments of a read, checked.

    Attributes:
        columns: names, in the order wanted; None: all.
        where: rows to keep.
        latest: read each tablet at its leader's own time instead of one snapshot.
        max_age_ms: read each tablet at any replica whose rows are not older; None: at its leader.
        at: snapshot; 0: the largest time among the servers as the scan begins.
        limit: most rows; 0: all.
        ordered: by primary key.
        count_only: only the number of rows.
        changes: read the change feed (since, at] instead.
        since: lower end of a change feed.
        net: one row per key in a change feed, else each version.
        before: with the row before each change.
        after: encoded primary key; only rows above it are read, of each tablet.
        schema: whose columns have these names; None: the table's as the read begins.
        past: columns of `schema` that the table does not have any more.
    """

    columns: tuple[str, ...] | None = None
    where: Predicate | None = None
    latest: bool = False
    max_age_ms: int | None = None
    at: int = 0
    limit: int = 0
    ordered: bool = False
    count_only: bool = False
    changes: bool = False
    since: int = 0
    net: bool = True
    before: bool = False
    after: bytes = b""
    schema: Schema | None = None
    past: tuple[Column, ...] = ()


def scan_spec(
    schema: Schema,
    columns: Sequence[str] | None,
    where: str | None,
    at: int | datetime | None,
    limit: int | None,
    order: bool,
    mode: str,
    max_age_ms: int | None,
) -> ReadSpec:
    """Check the arguments of a scan.

    Args:
        schema: schema of the table.
        columns: names wanted; None: all.
        where: text of a predicate; None: every row.
        at: snapshot; None: the time when the scan begins.
        limit: most rows, 0 for none; None: all.
        order: by primary key.
        mode: one of `MODES`.
        max_age_ms: greatest age of the rows in milliseconds, for mode "stale" only.

    Returns:
        The specification, with names resolved.

    Raises:
        NotFound: an unknown column.
        InvalidArgument: a `where` that cannot be parsed, a wrong mode or limit, an ordered scan without its
            key columns.
    """
    keys = key_names(schema)
    _check_mode(mode, at, max_age_ms)
    if limit is not None and (not is_int(limit) or not 0 <= limit < 1 << 63):
        raise InvalidArgument(f"limit={limit!r}: a limit is a number of rows, from 0 on")
    if not isinstance(order, bool):
        raise InvalidArgument(f"order={order!r}: True sorts by primary key; pass True or False")
    names = names_of(schema, columns)
    if order and names is not None and (missing := [k for k in keys if k not in names]):
        raise InvalidArgument(f"an ordered scan needs the key columns; add {', '.join(missing)}")
    tree = None if where is None else parse(where, schema)
    return ReadSpec(
        columns=names,
        where=FALSE if limit == 0 else tree,  # in a token, a limit of 0 is none
        latest=mode in ("latest", "stale"),
        max_age_ms=max_age_ms,
        at=0 if at is None else max(1, as_stamp(at)),  # 0 would mean now
        limit=limit or 0,
        ordered=order,
    )


def changes_spec(
    schema: Schema,
    since: int | datetime,
    until: int | datetime | None,
    net: bool,
    columns: Sequence[str] | None,
    where: str | None,
    *,
    before: bool = False,
) -> ReadSpec:
    """Check the arguments of a change feed.

    Args:
        schema: schema of the table.
        since: exclusive lower end.
        until: inclusive upper end; None: now.
        net: one row per key that changed; else every version.
        columns: names wanted beside the key columns; None: all.
        where: text of a predicate; None: every row.
        before: with the row before each change.

    Returns:
        The specification, with names resolved.

    Raises:
        NotFound: an unknown column.
        InvalidArgument: a `where` that cannot be parsed, `until` before `since`, or no bool.
    """
    keys = key_names(schema)
    for name, value in (("net", net), ("before", before)):
        if not isinstance(value, bool):
            raise InvalidArgument(f"{name}={value!r}: pass True or False")
    names = names_of(schema, columns)
    if names is not None:
        names = (*keys, *(n for n in names if n not in keys))
    spec = ReadSpec(
        columns=names,
        where=None if where is None else parse(where, schema),
        at=0 if until is None else max(1, as_stamp(until)),
        changes=True,
        since=as_stamp(since),
        net=net,
        before=before,
    )
    if spec.at and spec.at < spec.since:
        raise InvalidArgument(f"changes: until ({spec.at}) lies before since ({spec.since})")
    return spec


def schema_of(schema: Schema, spec: ReadSpec) -> pa.Schema:
    """Return the Arrow schema of the rows of a read."""
    names = [c.name for c in schema.columns] if spec.columns is None else spec.columns
    found = arrow_schema([schema.column(n) for n in names])
    if not spec.changes:
        return found
    keys = key_names(schema)  # a deleted row has nothing else
    fields = [f if f.name in keys else f.with_nullable(True) for f in found]
    if spec.before:
        row = pa.struct([pa.field(f.name, f.type) for f in found])
        return pa.schema([*fields, *_FEED, pa.field("_before", row)])
    return pa.schema([*fields, *_FEED])


def key_names(schema: Schema) -> list[str]:
    """Return the names of the key columns, in key order."""
    return [c.name for c in schema.key_columns]


def names_of(schema: Schema, columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Check the column names of a read.

    Returns:
        The names in their order; None: all columns.

    Raises:
        NotFound: an unknown column.
        InvalidArgument: no list of names, an empty one, or a name given twice.
    """
    if columns is None:
        return None
    names = [] if isinstance(columns, str) else check_list("columns", columns)
    if not names:
        raise InvalidArgument(f"columns={columns!r}: pass a list of at least one column name")
    for name in names:
        if not isinstance(name, str):
            raise InvalidArgument(f"columns: a column name is a str, not {name!r}")
        schema.column(name)
        if names.count(name) > 1:
            raise InvalidArgument(f"column {name!r} is named twice")
    return tuple(names)


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


def make_token(table: OpenTable, tablet: TabletLocation, spec: ReadSpec, at: int) -> pb.ScanToken:
    """Return the token that reads one tablet; the reader adds its own sizes, masters and deadline.

    Args:
        table: the open table.
        tablet: the tablet that is read.
        spec: spec of the read.
        at: hybrid time of the snapshot; 0: now, at each leader.
    """
    schema = spec.schema or table.schema
    token = pb.ScanToken(
        table_id=table.id,
        table_name=table.name,
        tablet_id=tablet.id,
        schema_version=schema.version,
        ranges_version=table.ranges_version,
        mode=pb.LATEST if spec.latest and not at else pb.SNAPSHOT,
        at=at,
        limit=spec.limit,
        ordered=spec.ordered,
        count_only=spec.count_only,
        changes=spec.changes,
        since=spec.since,
        net=spec.net,
        before=spec.before,
        replicas=tablet.addresses(),
        resume_after=spec.after,
    )
    if spec.max_age_ms is not None:
        token.mode, token.max_age_ms = pb.STALE, spec.max_age_ms
    if not spec.count_only:  # by id and under these names, whatever the table is altered to
        names = schema.by_name if spec.columns is None else spec.columns
        token.column_ids.extend(schema.column(n).id for n in names)
        token.column_names.extend(names)
    if spec.where is not None:
        token.where.CopyFrom(convert.predicate_to_proto(spec.where))
    if spec.past:
        used = {*token.column_ids, *(columns_of(spec.where) if spec.where is not None else ())}
        token.past_columns.extend(convert.column_to_proto(c) for c in spec.past if c.id in used)
    return token


def make_probe(table: OpenTable, tablet: TabletLocation, at: int) -> pb.ScanToken:
    """Return a token that reads no row, and is refused if the table has newer ranges at its time; 0: now.

    Args:
        table: the open table.
        tablet: any tablet of the table.
        at: hybrid time of the snapshot; 0: now, at each leader.
    """
    token = make_token(table, tablet, ReadSpec(count_only=True, latest=not at), at)
    token.key_upper = b"\0"
    return token
