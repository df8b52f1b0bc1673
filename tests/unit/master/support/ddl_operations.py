"""Every operation of the catalog as a value, with the catalog before it."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from nyala.client.alter import AlterSteps
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.common.ids import ServerUuid, TableId
from nyala.common.keys.encoding import encode_key
from nyala.common.partitioning.partition import KeyRange, PartitionSchema
from nyala.common.schema import from_arrow
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.catalog.records.rows import CatalogRow
from nyala.master.ddl import (
    alter_table,
    create_table,
    creation_timeouts,
    drop_table,
    recall_table,
    replace_tablet,
    server_states,
    tablet_report,
)
from nyala.master.ddl.create_table import PlanInputs
from nyala.master.ddl.operation import CatalogOperation
from nyala.master.ddl.server_states import ServerLiveness
from nyala.wire import convert
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.master_helpers import report, server_info

SCHEMA = from_arrow(pa.schema([("k", pa.int64()), ("v", pa.string())]), ["k"])
CLIENT = b"c" * 16


def bound(value: int) -> bytes:
    return encode_key([pa.scalar(value, pa.int64())], [pa.int64()])


def plan_inputs(seed: int = 1, max_tablets: int = 100, servers: str = "abc") -> PlanInputs:
    live = [server_info(name) for name in servers]
    return PlanInputs(live, random.Random(seed), 5, max_tablets, 3)


def ranged(*pieces: tuple[int, int]) -> PartitionSchema:
    ranges = tuple(KeyRange(bound(low), bound(high)) for low, high in pieces)
    return PartitionSchema((), (SCHEMA.columns[0].id,), ranges)


def create_request(name: str, ps: PartitionSchema | None = None) -> pb.CreateTableRequest:
    spec = pb.TableSpec(name=name, schema=convert.schema_to_proto(SCHEMA), replicas=3)
    spec.partition.CopyFrom(convert.partition_schema_to_proto(ps or ranged((0, 10), (10, 20))))
    return pb.CreateTableRequest(table=spec)


def journal_request(name: str = "ops", **more: Any) -> pb.CreateTableRequest:
    return pb.CreateTableRequest(table=pb.TableSpec(name=name, kind=1, replicas=3, **more))


def put(catalog: Catalog, operation: CatalogOperation) -> str:
    """Carry an operation out on a catalog in memory; return its table."""
    plan = operation.plan(catalog)
    catalog.publish(catalog.draft(plan))
    assert plan.answer is not None
    return plan.answer


def steps_of(table: pb.TableSpec, *steps: tuple[Any, ...]) -> list[pb.AlterStep]:
    """Return the messages of steps: (method of AlterSteps, its arguments...)."""
    opened = OpenTable(
        TableId("id"), table.name, convert.schema_from_proto(table.schema),
        convert.partition_schema_from_proto(table.partition), 3, {},
    )  # fmt: skip
    made = AlterSteps(opened)
    for method, *arguments in steps:
        getattr(made, method)(*arguments)
    return made.steps


def alteration(
    catalog: Catalog, name: str, *steps: tuple[Any, ...], sequence: int = 9
) -> pb.AlterTableRequest:
    operation = pb.OperationId(client=CLIENT, sequence=sequence)
    messages = steps_of(catalog.require(name).spec, *steps)
    return pb.AlterTableRequest(name=name, steps=messages, operation=operation)


def altered(
    catalog: Catalog, name: str, *steps: tuple[Any, ...], sequence: int = 9
) -> CatalogOperation:
    return alter_table.operation(
        alteration(catalog, name, *steps, sequence=sequence), plan_inputs(3)
    )


def _resized(catalog: Catalog, replicas: int) -> CatalogOperation:
    request = alteration(catalog, "t", ("set_replicas", replicas))
    return alter_table.operation(request, plan_inputs(3, servers="abcde"))


def with_table(led: bool = True) -> Catalog:
    """A catalog with one table `t` of two ranges; its tablets have leaders by default."""
    catalog = Catalog()
    found = cat.ClusterRecord(cluster_id="c", catalog_incarnation="i")
    catalog.cluster = found
    put(catalog, create_table.operation(create_request("t"), plan_inputs()))
    if led:
        for server in "abc":
            reports = [report(t.id, leader="a", term=1) for t in catalog.tablets()]
            plan = tablet_report.plan(catalog, server, reports)  # type: ignore[arg-type]
            catalog.publish(catalog.draft(plan))
    return catalog


def sighting(names: str) -> ServerLiveness:
    return ServerLiveness({ServerUuid(n): server_info(n) for n in names}, complete=True)


def with_servers() -> Catalog:
    """As `with_table`, and four servers are listed."""
    catalog = with_table()
    (noted,) = server_states.due(catalog, sighting("abcd"))
    catalog.publish(catalog.draft(noted.plan(catalog)))
    return catalog


@dataclass(frozen=True)
class Case:
    """One operation and the catalog before it."""

    name: str
    before: Callable[[], Catalog]
    operation: Callable[[Catalog], CatalogOperation]


def _create(_: Catalog) -> CatalogOperation:
    request = create_request("u")
    request.operation.CopyFrom(pb.OperationId(client=CLIENT, sequence=9))
    return create_table.operation(request, plan_inputs(2))


def _drop(reserve: int) -> Callable[[Catalog], CatalogOperation]:
    operation = pb.OperationId(client=CLIENT, sequence=9)
    request = pb.DropTableRequest(name="t", reserve_seconds=reserve, operation=operation)
    return lambda _: drop_table.operation(request, 1_000_000)


def _dropped() -> Catalog:
    catalog = with_table()
    put(catalog, drop_table.operation(pb.DropTableRequest(name="t", reserve_seconds=60), 0))
    return catalog


def _recall(catalog: Catalog) -> CatalogOperation:
    operation = pb.OperationId(client=CLIENT, sequence=9)
    (table,) = catalog.recallable()
    request = pb.RecallTableRequest(id=table.id, new_name="u", operation=operation)
    return recall_table.operation(request)


def _altering() -> Catalog:
    catalog = with_table()
    put(catalog, altered(catalog, "t", ("add_column", "n", pa.int32()), sequence=1))
    return catalog


def _report(catalog: Catalog) -> CatalogOperation:
    tablets = [report(t.id, leader="b", term=2) for t in catalog.tablets()]
    return tablet_report.operations(catalog, "b", tablets, 10)[0]  # type: ignore[arg-type]


def _late(catalog: Catalog) -> CatalogOperation:
    """Both tablets of `t` have never been RUNNING."""
    (operation,) = creation_timeouts.replacements(catalog, catalog.creating(), plan_inputs(4))
    return operation


def _lost(catalog: Catalog) -> CatalogOperation:
    (tablet, _) = catalog.tablets_of(catalog.require("t").id)
    return replace_tablet.unsafe(
        pb.ReplaceTabletRequest(tablet_id=tablet.id), plan_inputs(4), [], 7
    )


NEW_COLUMN = ("add_column", "n", pa.int32())
CASES = [
    Case("create", with_table, _create),
    Case("columns", with_table, lambda c: altered(c, "t", NEW_COLUMN, ("drop_column", "v"))),
    Case("unmade", lambda: with_table(led=False), lambda c: altered(c, "t", ("rename_column", "v", "w"))),
    Case("again", _altering, lambda c: altered(c, "t", ("rename_column", "v", "w"))),
    Case("rename", with_table, lambda c: altered(c, "t", ("rename", "u"))),
    Case("texts", with_table, lambda c: altered(c, "t", ("set_comment", "x"), ("set_owner", "y"))),
    Case("add_range", with_table, lambda c: altered(c, "t", ("add_range", 20, 30))),
    Case("drop_range", with_table, lambda c: altered(c, "t", ("drop_range", 0, 10))),
    Case("swap_range", with_table, lambda c: altered(c, "t", ("drop_range", 0, 10), ("add_range", 0, 10))),
    Case("more_replicas", with_table, lambda c: _resized(c, 5)),
    Case("fewer_replicas", with_table, lambda c: _resized(c, 1)),
    Case("drop", with_table, _drop(0)),
    Case("drop_for_a_time", with_table, _drop(60)),
    Case("recall", _dropped, _recall),
    Case("purge", _dropped, lambda c: drop_table.purge(c.recallable()[0], 10**12)),
    Case("finish", _altering, lambda c: alter_table.finish(c.altering()[0], lambda _: 1)),
    Case("note_servers", with_table, lambda c: server_states.due(c, sighting("abc"))[0]),
    Case("note_deaths", with_servers, lambda c: server_states.due(c, sighting("ab"))[0]),
    Case("maintenance", with_servers, lambda c: server_states.mark("a", maintenance=True)),
    Case("decommission", with_servers, lambda c: server_states.mark("d", decommission=True)),
    Case("report", with_table, _report),
    Case("late", lambda: with_table(led=False), _late),
    Case("lost", with_table, _lost),
]  # fmt: skip


def rows_of(catalog: Catalog) -> dict[tuple[str, str], CatalogRow]:
    """Return the catalog as it would be on disk."""
    tables = [t.record for t in map(catalog.table, _table_ids(catalog)) if t is not None]
    plan = CatalogPlan(tuple(t.record for t in catalog.tablets()), tuple(tables), catalog.cluster,
                servers=tuple(catalog.servers.all()))  # fmt: skip
    return {(r.kind, r.id): r for r in catalog.draft(plan).rows}


def _table_ids(catalog: Catalog) -> list[TableId]:
    return list(dict.fromkeys(t.table_id for t in catalog.tablets()))


def loaded(rows: dict[tuple[str, str], CatalogRow]) -> Catalog:
    """Return the catalog that a new leader loads from the rows on disk."""
    catalog = Catalog()
    catalog.load([rows[key] for key in sorted(rows)])
    return catalog
