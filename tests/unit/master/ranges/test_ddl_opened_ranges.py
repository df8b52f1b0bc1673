"""Order of adding a range: its tablets are created after all others have the new version; timestamps."""

from nyala.client.alter import AlterSteps
from nyala.common.ids import ServerUuid, TabletId
from nyala.master.catalog.actions import CreateTabletAction
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.catalog.records.tables import CatalogTablet, TabletState
from nyala.master.ddl import alter_table, background, dropped_ranges, replace_tablet
from nyala.master.ddl.creation_timeouts import Creations
from nyala.master.orders import reconcile
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.table_client import rows_of
from tests.unit.master.support.ddl_cluster import with_cluster
from tests.unit.master.support.ddl_levels import ids, reported_versions
from tests.unit.master.support.ddl_operations import (
    alteration,
    altered,
    plan_inputs,
    put,
    with_table,
)

ADD = ("add_range", 20, 30)
SWAP = (("drop_range", 0, 10), ("add_range", 0, 10))


def opening(catalog, **shown):
    servers = reported_versions(**shown)
    return alter_table.opening(catalog, catalog.require("t"), servers.schema_version)


def tablet_of(catalog, tablet) -> CatalogTablet:
    found: CatalogTablet | None = catalog.tablet(TabletId(tablet))
    assert found is not None
    return found


def retire(catalog, tablet, at):
    record = tablet_of(catalog, tablet).edit()
    record.dropped_at = at
    catalog.publish(catalog.draft(CatalogPlan((record,))))


def test_tablet_of_added_range_is_created_after_other_tablets_reach_version():
    catalog = with_table()
    one, two = ids(catalog)
    put(catalog, altered(catalog, "t", ADD))
    three = ids(catalog)[2]
    assert tablet_of(catalog, three).held
    assert not [
        a for a in reconcile.orders_for(catalog, reported_versions(a={}).all()) if a.tablet == three
    ]
    assert opening(catalog, a={one: 1}) == []
    assert opening(catalog, a={one: 1, two: 0}) == []
    assert Creations(1).timed_out(catalog, [ServerUuid("a")], 10**12) == [], (
        "no creation time-out yet"
    )
    assert Creations(0).timed_out(catalog, [ServerUuid("a")], 10**12) == [], (
        "no creation time-out yet"
    )
    shown = {"a": {one: 1, two: 1}}
    (operation,) = [
        o
        for o in background.due(catalog, reported_versions(**shown), 0, 0, 1)
        if o.what == "open ranges"
    ]
    plan = operation.plan(catalog)
    assert {a.tablet for a in plan.actions} == {three}
    assert all(isinstance(a, CreateTabletAction) for a in plan.actions)
    put(catalog, operation)
    assert not tablet_of(catalog, three).held
    assert opening(catalog, **shown) == [], "the range is opened once"


def test_successor_of_an_added_tablet_keeps_the_time_above_which_it_opens():
    catalog = with_table()
    one, two = ids(catalog)
    put(catalog, altered(catalog, "t", ADD))
    three = ids(catalog)[2]
    servers, table = reported_versions(a={one: 1, two: 1}), catalog.require("t")
    put(catalog, alter_table.open_ranges(table, servers.schema_version, lambda: 700))
    put(catalog, replace_tablet.operation(table.id, [three], plan_inputs(5)))
    successor = catalog.successor(three)
    assert successor is not None
    assert successor.id != three
    assert (successor.record.added_by, successor.record.floor) == (1, 700)


def test_range_that_is_dropped_before_it_was_opened_is_deleted():
    catalog = with_table()
    one, two = ids(catalog)
    put(catalog, altered(catalog, "t", ADD))
    three = ids(catalog)[2]
    put(catalog, altered(catalog, "t", ("drop_range", 20, 30), sequence=10))
    assert tablet_of(catalog, three).state is TabletState.DELETED, "it never had rows"
    servers = reported_versions(a={one: 2, two: 2})
    table = catalog.require("t")
    assert alter_table.is_finished(catalog, table, servers.schema_version), "nothing is awaited"


def test_overlapping_range_is_refused_until_dropped_range_has_ended():
    catalog = with_table()
    one, two = ids(catalog)
    put(catalog, altered(catalog, "t", *SWAP))
    assert tablet_of(catalog, one).state is TabletState.DROPPED
    assert len(catalog.current_of(catalog.require("t").id)) == 2
    shown = {"a": {one: 1, two: 1}}
    assert opening(catalog, **shown) == []
    servers = reported_versions(**shown)
    assert not alter_table.is_finished(catalog, catalog.require("t"), lambda _: 1)
    retire(catalog, one, 500)
    (new,) = opening(catalog, **shown)
    assert new.id not in (one, two)
    assert servers.schema_version(new.id) == 0
    assert not dropped_ranges.is_expired(catalog, tablet_of(catalog, one), 10, 1)
    assert dropped_ranges.is_expired(catalog, tablet_of(catalog, one), 10**12, 1)


def test_second_added_range_waits_for_first():
    catalog = with_table()
    one, two = ids(catalog)
    put(catalog, altered(catalog, "t", ADD))
    three = ids(catalog)[2]
    request = alteration(catalog, "t", ("add_range", 30, 40), sequence=10)
    put(catalog, alter_table.operation(request, plan_inputs(7)))
    (four,) = [t for t in ids(catalog) if t not in (one, two, three)]
    shown = {"a": {one: 2, two: 2}}
    assert [t.id for t in opening(catalog, **shown)] == [three]
    put(catalog, alter_table.open_ranges(catalog.require("t"), lambda _: 2, lambda: 9))
    assert opening(catalog, a={one: 2, two: 2, three: 2}) == [], "the new tablet has no leader yet"
    record = tablet_of(catalog, three).edit()
    record.state = TabletState.RUNNING.value
    catalog.publish(catalog.draft(CatalogPlan((record,))))
    assert opening(catalog, a={one: 2, two: 2, three: 1}) == []
    assert [t.id for t in opening(catalog, a={one: 2, two: 2, three: 2})] == [four]


def test_writes_to_added_range_have_timestamps_above_version_switch():
    async def work(ddl):
        cluster = ddl.cluster
        opened = await ddl.create_ranges(bounds=((0, 10),))
        await ddl.put(opened, 5)
        old = {address for _, address in opened.tablets[0].replicas}
        for process in cluster.tservers:
            if process.address in old:
                process.clock.jump(8_000_000)
        for uuid, _ in opened.tablets[0].replicas:  # they get no new replicas
            request = pb.SetMaintenanceRequest(uuid=uuid, on=True)
            masters = ddl.core.masters
            await ddl.ask(masters.call, methods.SET_MAINTENANCE, request, timeout_ms=10_000)
        before = await ddl.now(opened)
        other = cluster.client()

        async def add_and_write():
            table = await other.open_table("t")
            steps = AlterSteps(table)
            steps.add_range(20, 30)
            new = await other.ddl.alter_table(table, steps.steps)
            written = await other.session.write(
                new, pb.UPSERT, rows_of([25], [1]), all_or_nothing=False, timeout_ms=10_000
            )
            return new, written.timestamp

        new, stamp = await cluster.run(cluster.clients[-1], add_and_write)
        (added,) = [t for t in new.tablets if t.id != opened.tablets[0].id]
        assert not old & {address for _, address in added.replicas}, (
            "its replicas are on servers with correct clocks"
        )
        assert stamp > before, "otherwise a scan at that time would not be repeatable"

    with_cluster(work, tservers=6)


def test_master_without_hold_information_sends_no_order_for_held_tablet():
    catalog = with_table()
    put(catalog, altered(catalog, "t", ADD))
    three = ids(catalog)[2]
    order = CreateTabletAction(ServerUuid("a"), TabletId(three))
    assert reconcile.create_request(catalog, order, pb.Fence()) is None
