"""Reports to plans, and levels to orders: pure."""

import pytest

from nyala.common.ids import ServerUuid, TabletId
from nyala.master.catalog.actions import CreateTabletAction, DeleteTabletAction
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.ddl import tablet_report
from nyala.master.orders import reconcile
from nyala.master.tservers import TServer
from nyala.wire.proto import catalog_pb2 as cat
from tests.unit.master.orders.known_tablets import FENCE, T
from tests.unit.master.orders.known_tablets import known as catalog
from tests.unit.master.support.master_helpers import report, server_info


def taken(made, *reports, server="a"):
    plan = tablet_report.plan(made, ServerUuid(server), reports)
    made.publish(made.draft(plan))
    return plan


def server(name, *tablets):
    made = TServer(server_info(name), 0)
    made.replicas = dict.fromkeys(map(TabletId, tablets), "RUNNING")
    return made


@pytest.mark.row("S0.80")
def test_creating_tablet_becomes_running_when_leader_is_reported():
    made = catalog()
    taken(made, report(T))
    assert made.tablet(T).state.name == "CREATING"
    taken(made, report(T, leader="b", term=1))
    assert made.tablet(T).state.name == "RUNNING"
    assert made.tablet(T).consensus.leader == "b"


def test_report_without_changes_writes_nothing():
    made = catalog()
    taken(made, report(T, leader="b", term=1))
    assert not taken(made, report(T, leader="b", term=1)).writes
    assert not tablet_report.operations(made, ServerUuid("a"), [report(T, leader="b", term=1)], 9)


@pytest.mark.row("S0.81")
@pytest.mark.parametrize(
    ("known", "reported", "kept"),
    [
        ({"term": 3, "leader": "a"}, {"term": 2, "leader": "b"}, (3, "a")),
        ({"term": 3, "leader": "a"}, {"term": 4, "leader": "b"}, (4, "b")),
        ({"term": 3, "leader": "a"}, {"term": 4}, (3, "a")),
        ({"term": 3}, {"term": 3, "leader": "b"}, (3, "b")),
        ({"term": 3, "leader": "a"}, {"term": 3}, (3, "a")),
        ({"term": 3, "leader": "a", "config": (3, 9)}, {"term": 5, "leader": "c"}, (3, "a")),
        ({"term": 5, "leader": "a"}, {"term": 4, "config": (4, 2), "leader": "b"}, (5, "a")),
    ],
)
def test_older_reports_never_overwrite_newer_ones(known, reported, kept):
    made = catalog(cat.TABLET_RUNNING, **known)
    taken(made, report(T, **reported))
    consensus = made.tablet(T).consensus
    assert (consensus.term, consensus.leader) == kept
    want = max(known.get("config", (0, 0)), reported.get("config", (0, 0)))
    assert (consensus.config_term, consensus.config_index) == want


def test_unknown_fields_survive_report_updates():
    made = catalog()
    record = made.tablet(T).edit()
    raw = record.SerializeToString() + b"\xfa\x06\x03new"  # field 111
    made.publish(made.draft(CatalogPlan((cat.TabletRecord.FromString(raw),))))
    taken(made, report(T, leader="b", term=1))
    assert b"\xfa\x06\x03new" in made.tablet(T).record.SerializeToString()


@pytest.mark.row("S0.55")
def test_reports_are_processed_in_bounded_batches():
    made = Catalog()
    records = tuple(
        cat.TabletRecord(id=f"t{n}", table_id="x", state=cat.TABLET_CREATING) for n in range(25)
    )
    made.publish(made.draft(CatalogPlan(records)))
    reports = [report(f"t{n}", leader="a", term=1) for n in range(25)]
    found = tablet_report.operations(made, ServerUuid("a"), reports, 10)
    assert [len(o.plan(made).tablets) for o in found] == [10, 10, 5]
    assert [len(o.scope(made).tablets) for o in found] == [10, 10, 5]


@pytest.mark.row("S0.77", "S0.46")
def test_replica_without_record_is_never_deleted():
    made = catalog()
    assert not taken(made, report("stranger", leader="a", term=1)).writes
    orders = reconcile.orders_for(made, [server("a", T, "stranger")])
    assert not orders
    action = DeleteTabletAction(ServerUuid("a"), TabletId("stranger"))
    assert reconcile.delete_request(made, action, FENCE) is None


def test_members_that_never_reported_a_replica_get_a_create_order():
    made = catalog()
    servers = [server("a", T), server("b"), server("d")]
    assert reconcile.orders_for(made, servers) == [CreateTabletAction(ServerUuid("b"), T)]
    order = reconcile.create_request(made, CreateTabletAction(ServerUuid("b"), T), FENCE)
    assert order is not None
    assert (order.destination_uuid, order.fence.term, order.table_name) == ("b", 4, "metrics")
    assert [m.uuid for m in order.members] == ["a", "b", "c"]


def test_member_that_lost_its_replica_gets_no_empty_one():
    made = catalog()
    taken(made, report(T), server="b")
    assert not reconcile.orders_for(made, [server("b")])


def test_member_missing_in_later_configuration_gets_no_empty_replica():
    made = catalog(cat.TABLET_RUNNING, config=(2, 7))
    assert not reconcile.orders_for(made, [server("a"), server("b")])


@pytest.mark.parametrize("state", [cat.TABLET_DELETED, cat.TABLET_REPLACED])
def test_replicas_of_deleted_tablets_get_an_order_to_be_deleted(state):
    made = catalog(state)
    assert reconcile.orders_for(made, [server("a", T), server("b")]) == [
        DeleteTabletAction(ServerUuid("a"), T)
    ]
    order = reconcile.delete_request(made, DeleteTabletAction(ServerUuid("a"), T), FENCE)
    assert order is not None
    assert not order.compare_config
    assert reconcile.create_request(made, CreateTabletAction(ServerUuid("a"), T), FENCE) is None


def test_live_tablet_is_never_deleted():
    action = DeleteTabletAction(ServerUuid("a"), T)
    assert reconcile.delete_request(catalog(), action, FENCE) is None
    assert not taken(catalog(cat.TABLET_DELETED), report(T, leader="a", term=9)).writes
