"""Orders derived from catalog, reports and clock while tables are altered, dropped and recalled. Pure."""

import pyarrow as pa
import pytest

from nyala.common.ids import ServerUuid, TabletId
from nyala.master.catalog import queries
from nyala.master.catalog.actions import AlterTabletAction, CreateTabletAction
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.catalog.records.rows import table_row, tablet_row
from nyala.master.catalog.records.tables import TableState
from nyala.master.ddl import alter_table, background, drop_table, recall_table, tablet_report
from nyala.master.ddl.alter_steps import MAX_STEPS, Rules, take
from nyala.master.orders import reconcile
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.ddl_levels import ids, reported_versions
from tests.unit.master.support.ddl_operations import (
    altered,
    create_request,
    put,
    steps_of,
    with_table,
)
from tests.unit.master.support.master_helpers import report

FENCE = pb.Fence(catalog_incarnation="i", term=1)
NEW = ("add_column", "n", pa.int32())


def alterations(catalog, servers):
    return [
        a for a in reconcile.orders_for(catalog, servers.all()) if isinstance(a, AlterTabletAction)
    ]


def test_alter_orders_repeat_until_leader_reports_new_version():
    catalog = with_table()
    one, two = ids(catalog)
    put(catalog, altered(catalog, "t", NEW))
    want = [AlterTabletAction(ServerUuid("a"), TabletId(t)) for t in (one, two)]
    assert alterations(catalog, reported_versions()) == want
    assert alterations(catalog, reported_versions(a={one: 1, two: 0})) == want[1:]
    assert alterations(catalog, reported_versions(b={one: 1, two: 1})) == want, (
        "a follower's report does not count"
    )
    request = reconcile.alter_request(catalog, want[0], FENCE)
    assert request is not None
    assert [c.name for c in request.schema.columns] == ["k", "v", "n"]
    assert (request.table_name, request.schema.version) == ("t", 1)
    put(catalog, drop_table.operation(pb.DropTableRequest(name="t"), 5))
    assert reconcile.alter_request(catalog, want[0], FENCE) is None, "superseded by the drop"


@pytest.mark.row("S0.75", "S0.83")
def test_table_is_altering_until_all_tablets_report_the_version():
    catalog = with_table()
    one, two = ids(catalog)
    put(catalog, altered(catalog, "t", NEW))
    assert background.due(catalog, reported_versions(a={one: 1}), 0, 0, 86_400) == []
    assert (
        background.due(catalog, reported_versions(a={one: 1, two: 0}, b={one: 0}), 0, 0, 86_400)
        == []
    )
    servers = reported_versions(a={one: 1}, c={two: 1})
    (operation,) = background.due(catalog, servers, 0, 0, 86_400)
    described = queries.describe(catalog, servers, catalog.require("t"))
    assert (described.state, described.tablets_altered) == ("ALTERING", 2)
    put(catalog, altered(catalog, "t", ("set_default", "n", 3), sequence=10))
    assert not operation.plan(catalog).writes, "the table was altered again meanwhile"
    assert catalog.require("t").record.fully_applied_schema.version == 0
    (operation,) = background.due(catalog, reported_versions(a={one: 2, two: 2}), 0, 0, 86_400)
    put(catalog, operation)
    assert catalog.require("t").state is TableState.RUNNING
    assert not catalog.require("t").record.HasField("fully_applied_schema"), (
        "the present version needs no record"
    )
    assert not catalog.altering()


@pytest.mark.row("S0.76")
def test_unchanged_report_writes_nothing():
    catalog = with_table()
    for n, step in enumerate((("rename", "t"), ("set_comment", ""), ("set_default", "v", None))):
        plan = altered(catalog, "t", step, sequence=20 + n).plan(catalog)
        assert not plan.writes, step
        assert plan.answer == catalog.require("t").id


@pytest.mark.row("S0.52")
def test_replica_created_late_takes_schema_from_its_log():
    catalog = with_table(led=False)
    one, two = ids(catalog)
    seen = [report(t, leader="a", term=1) for t in (one, two)]
    for name in "ab":
        plan = tablet_report.plan(catalog, ServerUuid(name), seen)
        catalog.publish(catalog.draft(plan))
    put(catalog, altered(catalog, "t", NEW, ("rename", "u")))
    put(catalog, altered(catalog, "u", ("drop_column", "v"), ("add_range", 20, 30), sequence=10))
    assert [e.schema.version for e in catalog.require("u").record.earlier] == [0]
    late = reconcile.create_request(
        catalog, CreateTabletAction(ServerUuid("c"), TabletId(one)), FENCE
    )
    assert late is not None
    assert [c.name for c in late.schema.columns] == ["k", "v"]
    assert (late.schema.version, late.table_name) == (0, "t")
    three = ids(catalog)[2]
    order = CreateTabletAction(ServerUuid("c"), TabletId(three))
    assert reconcile.create_request(catalog, order, FENCE) is None, (
        "not before the other tablets have the version"
    )
    put(catalog, alter_table.open_ranges(catalog.require("u"), lambda _: 2, lambda: 77))
    new = reconcile.create_request(catalog, order, FENCE)
    assert new is not None
    assert (new.ranges_version, new.floor) == (2, 77)
    assert [c.name for c in new.schema.columns] == ["k", "n"]
    assert (new.schema.version, new.table_name) == (2, "u")
    plan = tablet_report.plan(catalog, ServerUuid("c"), seen)
    catalog.publish(catalog.draft(plan))
    put(catalog, altered(catalog, "u", ("rename", "w"), sequence=11))
    kept = [e.schema.version for e in catalog.require("w").record.earlier]
    assert kept == [2], "the first version is not needed any more"


@pytest.mark.row("S0.43", "S0.78")
def test_recallable_table_keeps_replicas_and_others_are_deleted():
    catalog = with_table()
    one, two = ids(catalog)
    servers = reported_versions(61_000_000, a={one: 0, two: 0})
    put(
        catalog,
        drop_table.operation(pb.DropTableRequest(name="t", reserve_seconds=60), 1_000_000),
    )
    (table,) = catalog.recallable()
    assert reconcile.orders_for(catalog, servers.all()) == []
    assert catalog.named("t") is None
    assert background.due(catalog, servers, 60_999_999, 0, 86_400) == []
    put(catalog, recall_table.operation(pb.RecallTableRequest(id=table.id)))
    assert background.due(catalog, servers, 10**12, 0, 86_400) == []
    assert catalog.require("t").id == table.id
    put(
        catalog,
        drop_table.operation(pb.DropTableRequest(name="t", reserve_seconds=60), 1_000_000),
    )
    early = reported_versions(60_999_999, a={one: 0, two: 0})
    assert background.due(catalog, early, 10**12, 0, 86_400) == [], "only this clock shows the time"
    (purge,) = background.due(catalog, servers, 61_000_000, 0, 86_400)
    put(catalog, recall_table.operation(pb.RecallTableRequest(id=table.id)))
    assert not purge.plan(catalog).writes, "the table was recalled before the purge"
    put(
        catalog,
        drop_table.operation(pb.DropTableRequest(name="t", reserve_seconds=60), 1_000_000),
    )
    (purge,) = background.due(catalog, servers, 61_000_000, 0, 86_400)
    put(catalog, purge)
    assert [a.tablet for a in reconcile.orders_for(catalog, servers.all())] == [one, two]
    assert not catalog.recallable()


def test_only_changes_visible_to_tablets_or_clients_increment_version():
    spec = create_request("t").table
    rules = Rules(100, 5)
    for version, *step in (
        (1, *NEW), (1, "rename", "u"), (1, "set_options", {"compression": "none"}),
        (1, "add_range", 20, 30), (1, "drop_range", 0, 10), (1, "set_comment", "x", "v"),
        (1, "rename_column", "k", "key"), (0, "set_comment", "x"), (0, "set_owner", "x"),
        (0, "rename", "t"), (0, "set_default", "v", None), (0, "set_replicas", 5),
    ):  # fmt: skip
        made = take(spec, steps_of(spec, tuple(step)), rules)
        assert made.spec.schema.version == version, step
    assert MAX_STEPS >= 1000


@pytest.mark.row("S0.75")
def test_dropped_column_ids_are_not_reused():
    catalog = with_table()
    put(catalog, altered(catalog, "t", NEW))
    put(catalog, altered(catalog, "t", ("drop_column", "n"), sequence=10))
    put(catalog, altered(catalog, "t", NEW, sequence=11))
    schema = catalog.require("t").spec.schema
    assert [c.id for c in schema.columns] == [0, 1, 3]
    assert schema.next_column_id == 4


@pytest.mark.row("S0.87")
def test_unknown_fields_survive_record_edits():
    """A master of this release edits records of a later release, during a rolling upgrade."""
    unknown = b"\xba\x3e\x05later"  # field 999, a string
    catalog = with_table()
    table, tablet = catalog.require("t"), next(iter(catalog.tablets()))
    wide = cat.TableRecord.FromString(table.record.SerializeToString() + unknown)
    parts = (wide.spec, wide.spec.schema, wide.spec.schema.columns[1], wide.spec.partition)
    for part in (*parts, wide.spec.partition.ranges[0]):
        part.MergeFromString(unknown)
    narrow = cat.TabletRecord.FromString(tablet.record.SerializeToString() + unknown)
    catalog.publish(catalog.draft(CatalogPlan((narrow,), (wide,))))

    def kept() -> list[int]:
        now, of_tablet = catalog.table(table.id), catalog.tablet(tablet.id)
        assert now is not None
        assert of_tablet is not None
        now.record.ClearField("fully_applied_schema")  # the records are copies
        now.record.ClearField("past")  # has its own copies of columns
        bodies = table_row(now.record).body, tablet_row(of_tablet.record).body
        return [body.count(unknown) for body in bodies]

    assert kept() == [6, 1]
    steps = (NEW, ("rename_column", "v", "w"), ("rename", "u"), ("add_range", 20, 30))
    put(catalog, altered(catalog, "t", *steps))
    plan = tablet_report.plan(catalog, ServerUuid("b"), [report(tablet.id, leader="b", term=9)])
    catalog.publish(catalog.draft(plan))
    put(catalog, drop_table.operation(pb.DropTableRequest(name="u", reserve_seconds=60), 0))
    put(catalog, recall_table.operation(pb.RecallTableRequest(id=table.id)))
    put(catalog, drop_table.operation(pb.DropTableRequest(name="u"), 0))
    assert kept() == [6, 1]
