"""Tablets of tables and journals: a list of all, the sizes of those of one table, the tablet of a key."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable, TabletLocation
from nyala.client.core import ClientCore
from nyala.client.journal.core import JournalCore
from nyala.client.read.read_spec import key_names
from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument, NotFound, NyalaError
from nyala.common.hybrid_time import to_micros
from nyala.common.partitioning.partition import describe, locate
from nyala.common.values.python_values import shown
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

ASK_MS = 3_000
"""Deadline, in milliseconds, of the answer of one tablet server."""


@dataclass(frozen=True, slots=True)
class TabletRow:
    """One tablet in the list of all."""

    tablet: str
    table: str
    partition: str
    leader: str
    replicas: str


@dataclass(frozen=True, slots=True)
class TabletSize:
    """Size of one tablet.

    Attributes:
        tablet: its id.
        partition: its part of the table.
        leader: address of its leader.
        rows: live rows, as of the leader; None: no leader answers.
        bytes: of the leader's replica, on disk and in memory; None: no leader answers.
        replicas: number of replicas that answer.
        replica_bytes: of all replicas that answer.
    """

    tablet: str
    partition: str
    leader: str
    rows: int | None
    bytes: int | None
    replicas: int
    replica_bytes: int


@dataclass(frozen=True, slots=True)
class TableHold:
    """A hold of the history of a table.

    Attributes:
        hold: its name; `follow-...` for that of a followed feed.
        at: hybrid time that stays readable.
        age_s: seconds between that time and the present.
        left_s: seconds until it expires if it is not renewed.
        tablets: number of tablets that it holds.
    """

    hold: str
    at: int
    age_s: int
    left_s: int
    tablets: int


HOLDS = tuple(f.name for f in fields(TableHold))
LISTED = tuple(f.name for f in fields(TabletRow))
SIZES = tuple(f.name for f in fields(TabletSize))


async def list_tablets(core: ClientCore, table: str = "") -> list[TabletRow]:
    """Return the tablets of all tables and journals, or those of one table.

    Raises:
        NotFound: no such table.
    """
    names = [table] if table else [t.name for t in await core.tables()]
    rows: list[TabletRow] = []
    for name in names:
        try:
            opened = await core.open_table(name)
        except NotFound:
            if table:
                raise
            continue  # dropped meanwhile
        rows += [_listed(name, _partition(opened, t), t) for t in opened.tablets]
    journals = JournalCore(core)
    for summary in [] if table else await journals.summaries():
        try:
            journal = await journals.open(summary.name)
        except NotFound:
            continue
        rows.append(_listed(summary.name, "journal", journal.tablet))
    return rows


def _listed(table: str, partition: str, tablet: TabletLocation) -> TabletRow:
    replicas = ", ".join(address or uuid for uuid, address in tablet.replicas)
    return TabletRow(tablet.id, table, partition, tablet.leader or "none", replicas)


def _partition(table: OpenTable, tablet: TabletLocation) -> str:
    return describe(table.schema, table.partition_schema, tablet.partition)


async def table_sizes(core: ClientCore, name: str) -> list[TabletSize]:
    """Return rows and bytes of each tablet of a table, as their servers report them.

    Raises:
        NotFound: no such table.
    """
    table = await core.open_table(name)
    ids = [t.id for t in table.tablets]
    addresses = sorted({a for t in table.tablets for _, a in t.replicas if a})
    answers = await asyncio.gather(*(_statuses(core, a, ids) for a in addresses))
    reported: dict[str, list[pb.TabletStatus]] = {}
    for status in (s for statuses in answers for s in statuses):
        if status.report.state == "RUNNING":
            reported.setdefault(status.report.tablet_id, []).append(status)
    return [_size(t, _partition(table, t), reported.get(t.id, [])) for t in table.tablets]


async def table_holds(core: ClientCore, name: str) -> list[TableHold]:
    """Return the holds of a table's history, the earliest time first, as its servers report them.

    Raises:
        NotFound: no such table.
    """
    table = await core.open_table(name)
    tablets = table.with_rows(0)
    ids = [t.id for t in tablets]
    addresses = sorted({a for t in tablets for _, a in t.replicas if a})
    answers = await asyncio.gather(*(_statuses(core, a, ids) for a in addresses))
    return merge_holds((s for found in answers for s in found), to_micros(await core.now()))


def merge_holds(statuses: Iterable[pb.TabletStatus], now_us: int) -> list[TableHold]:
    """Return the holds of one table, the earliest time first.

    Args:
        statuses: of replicas of the table's tablets; each reports the holds that it knows.
        now_us: the present, in microseconds since the epoch.
    """
    found: dict[str, list[tuple[int, int, str]]] = {}
    for status in statuses:
        for hold in status.holds:
            found.setdefault(hold.name, []).append((hold.at, hold.left_ms, status.report.tablet_id))
    holds = []
    for hold_name, kept in found.items():
        at = min(at for at, _, _ in kept)
        age_s = max(0, now_us - to_micros(at)) // 1_000_000
        left_s = max(left for _, left, _ in kept) // 1000
        holds.append(TableHold(hold_name, at, age_s, left_s, len({t for _, _, t in kept})))
    return sorted(holds, key=lambda h: (h.at, h.hold))


async def _statuses(core: ClientCore, address: str, ids: Iterable[str]) -> list[pb.TabletStatus]:
    """Return a server's reports of tablets; none if it does not answer."""
    request = pb.ListTabletsRequest(tablet_ids=ids)
    try:
        answer = await core.env.rpc.call(address, methods.LIST_TABLETS, request, timeout_ms=ASK_MS)
    except NyalaError:
        return []
    return list(answer.tablets)


def _size(tablet: TabletLocation, partition: str, found: list[pb.TabletStatus]) -> TabletSize:
    leading = [s for s in found if s.report.role == "LEADER"]
    leader = max(leading, key=lambda s: s.report.consensus.term, default=None)
    return TabletSize(
        tablet.id,
        partition,
        tablet.leader or "none",
        None if leader is None else leader.rows,
        None if leader is None else leader.data_bytes,
        len(found),
        sum(s.data_bytes for s in found),
    )


async def tablet_of_key(
    core: ClientCore,
    name: str,
    given: list[Any] | dict[str, Any],
    parse: Callable[[str, pa.DataType], Any],
) -> tuple[TabletRow, bool]:
    """Return the tablet of a key, and whether it has a row with this key.

    Args:
        core: a client of the cluster.
        name: name of the table.
        given: values of the key columns, in key order or by name; a text may stand for a value of any type.
        parse: converts a text to a value of an Arrow type.

    Raises:
        NotFound: no such table; no range partition covers the key.
        InvalidArgument: another number of values than key columns, a null, or a text that cannot be parsed.
        SchemaMismatch: a value that its column cannot hold exactly.
    """
    table = await core.open_table(name)
    columns = table.schema.key_columns
    values = given if isinstance(given, list) else []
    if isinstance(given, dict) and given.keys() == set(key_names(table.schema)):
        values = [given[c.name] for c in columns]
    if len(values) != len(columns) or None in values:
        raise InvalidArgument(
            f"the key of table {name!r} has {len(columns)} values, none of them null: "
            f"{', '.join(f'{c.name} ({c.type})' for c in columns)}; give them in this order, or by name as "
            "a JSON object"
        )
    typed = [
        parse(v, c.type) if isinstance(v, str) else v for v, c in zip(values, columns, strict=True)
    ]
    (key,) = to_batches([dict(zip(key_names(table.schema), typed, strict=True))], table.schema)
    number = int(locate(table.schema, table.partition_schema, key)[0])
    tablet = table.tablet_at(table.partition_schema, number)
    if tablet is None:
        raise NotFound(
            f"no range partition of table {name!r} covers the key {shown(values)}; add one with: nyala table "
            "add_range_partition"
        )
    (row,) = await core.get(table, key, None)
    return _listed(name, _partition(table, tablet), tablet), row is not None
