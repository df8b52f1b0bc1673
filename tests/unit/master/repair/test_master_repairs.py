"""From catalog and reports to orders: throttles, stalled copies, servers that start, the standby plan."""

from typing import Any

import pytest

from nyala.common.ids import NO_OP, OpId
from nyala.common.options import Options
from nyala.master.catalog import actions, group_state
from nyala.master.catalog.actions import ChangeMembersAction
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.orders import order_requests
from nyala.master.repair.repairer import Repairer
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.master_repairs import FAILED_US, TERM, RepairScenario

Add: Any = group_state.Add
Remove: Any = group_state.Remove
CancelCopyAction: Any = actions.CancelCopyAction
CopyAction: Any = actions.CopyAction
DeleteTabletAction: Any = actions.DeleteTabletAction
order: Any = order_requests.order


def test_repairs_are_limited_per_server_and_in_total():
    scenario = RepairScenario(tablets=9, repairs_per_server=2, repairs_max=5)
    scenario.group(failed="c", others="b")
    for name in "de":
        scenario.server(name)
    given = scenario.added()
    assert sorted(given) == ["d", "d", "e", "e"]
    scenario.server("f")
    assert len(scenario.added()) == 5
    scenario.repairs = Repairer(
        scenario.catalog,
        scenario.servers,
        TERM,
        Options(repairs_per_server=9, repairs_max=9),
        lambda: 1,
    )
    assert len(scenario.added()) == 9


def test_repairs_in_progress_count_towards_limits():
    scenario = RepairScenario(tablets=3, repairs_per_server=1, repairs_max=9)
    scenario.group(failed="c", others="b")
    scenario.server("d")
    first = scenario.catalog.tablet("t0").edit()
    first.consensus.members.add(uuid="d", promote=True)
    scenario.publish(CatalogPlan((first,)))
    assert scenario.added() == []


def test_copy_with_progress_continues_and_stalled_copy_fails():
    scenario = RepairScenario()
    scenario.group("1.2:a,b,c,+d", failed="c,d", others="b")
    scenario.server("d")
    copy = CopyAction("d", "t0", "a")
    for done in range(5):
        assert scenario.due_orders() == [copy]
        scenario.repairs.record_copy_progress(copy, pb.CopyProgress(stage="FILES", bytes_done=done))
        scenario.now_us += FAILED_US
    scenario.now_us += 1
    assert [a.step for a in scenario.due_orders()] == [
        Remove("d", "it was to become a replica, and has failed")
    ]


def test_repeatedly_failing_copy_counts_as_stalled():
    scenario = RepairScenario()
    scenario.group("1.2:a,b,c,+d", failed="c,d", others="b")
    scenario.server("d")
    scenario.due_orders()
    for n in range(4):
        progress = pb.CopyProgress(stage="FAILED" if n % 2 else "FILES", error=pb.Error(code="X"))
        scenario.repairs.record_copy_progress(CopyAction("d", "t0", "a"), progress)
        scenario.now_us += FAILED_US // 3
    assert isinstance(scenario.due_orders()[0], ChangeMembersAction)


def test_readded_replica_gets_a_full_copy_timeout():
    scenario = RepairScenario()
    scenario.group("1.2:a,b,c,+d", failed="c,d", others="b")
    scenario.server("d")
    scenario.due_orders()
    scenario.now_us += FAILED_US + 1
    assert scenario.added() == ["d"], "removed: no other server exists"
    scenario.group("1.3:a,b,c", failed="c", others="b")
    assert scenario.added() == ["d"], "added again on the same server"
    scenario.group("1.4:a,b,c,+d", failed="c,d", others="b")
    assert scenario.due_orders() == [CopyAction("d", "t0", "a")]


def test_unneeded_copy_is_cancelled_once():
    scenario = RepairScenario()
    scenario.group("1.2:a,b,c,+d", failed="c,d", others="b")
    scenario.server("d")
    scenario.due_orders()
    scenario.group("1.3:a,b,c")
    cancel = CancelCopyAction("d", "t0")
    assert scenario.due_orders() == [cancel]
    assert (
        order(scenario.catalog, scenario.servers, cancel, pb.Fence(), 1)[0] is methods.CANCEL_COPY
    )
    scenario.repairs.cancelled(cancel)
    assert scenario.due_orders() == []


def test_silent_replica_that_reported_failure_is_replaced_at_once():
    scenario = RepairScenario()
    scenario.group(others="b")
    scenario.server("a", "t0=a/1@1.1:a,b,c?c")
    scenario.server("d")
    assert scenario.added() == []
    scenario.server("c", "t0=none/1@1.1:a,b,c~FAILED")
    assert scenario.added() == ["d"]
    scenario.server("c", "t0=none/1@1.1:a,b,c~BOOTSTRAPPING")
    assert scenario.added() == [], "its server opens the replica, which may take long"
    scenario.server("c")
    assert scenario.added() == ["d"], "its server has no replica of it"


def test_leader_report_with_other_configuration_or_unknown_values_is_ignored():
    scenario = RepairScenario()
    scenario.group(failed="c", others="b")
    scenario.server("d")
    assert scenario.added() == ["d"]
    scenario.server("a", "t0=a/1@1.0:a,b,c!c")
    assert scenario.added() == []
    scenario.group(others="b")
    report = scenario.servers.get("a").leader_reports["t0"]
    scenario.servers.get("a").leader_reports["t0"] = type(report)(
        OpId(1, 1), {"b": "HEALTHY", "c": "BEWITCHED"}
    )
    assert scenario.added() == []


@pytest.mark.row("S1.10", "S1.22")
def test_removed_replicas_are_deleted_conditionally_and_orphans_and_members_kept():
    scenario = RepairScenario()
    scenario.group("2.7:a,b,c")
    scenario.server("d", "t0=a/1@1.1:a,b,d", "ffff=d/1@1.1:d")
    assert scenario.due_orders() == [DeleteTabletAction("d", "t0")]
    _, request = order(
        scenario.catalog, scenario.servers, DeleteTabletAction("d", "t0"), pb.Fence(), 1
    )
    assert (request.compare_config, request.config_term, request.config_index) == (True, 2, 7)
    assert (
        order(scenario.catalog, scenario.servers, DeleteTabletAction("c", "t0"), pb.Fence(), 1)
        is None
    )


def test_tablet_without_table_record_is_not_repaired():
    scenario = RepairScenario()
    scenario.group(failed="c", others="b")
    scenario.server("d", "t0=a/1@1.0:a,b,d")
    scenario.server("e")
    assert len(scenario.due_orders()) == 2
    lost = scenario.catalog.tablet("t0").edit()
    lost.table_id = "unknown"
    scenario.publish(CatalogPlan((lost,)))
    assert scenario.due_orders() == []


@pytest.mark.row("S0.42")
def test_configuration_change_based_on_older_configuration_is_not_sent():
    scenario = RepairScenario()
    scenario.group(failed="c", others="b")
    scenario.server("d")
    (change,) = scenario.due_orders()
    method, request = order(scenario.catalog, scenario.servers, change, pb.Fence(term=TERM), 9)
    assert method is methods.CHANGE_CONFIG
    assert (request.destination_uuid, request.config_term, request.config_index) == ("a", 1, 1)
    (edit,) = request.changes
    assert edit.kind == "add"
    assert (edit.member.uuid, edit.member.voter, edit.member.promote) == ("d", False, True)
    assert (edit.member.peer_address, edit.member.electable) == ("d:2", True)
    scenario.group("1.4:a,b,c", failed="c", others="b")
    assert order(scenario.catalog, scenario.servers, change, pb.Fence(), 9) is None


def test_replacement_is_placed_away_from_remaining_replicas():
    scenario = RepairScenario()
    scenario.server("a", "t0=a/1@1.1:a,b,c!c", location="r1", catalog=True)
    scenario.server("b", "t0=a/1@1.1:a,b,c", location="r2")
    for name, location in (("d", "r1"), ("e", "r2"), ("f", "r3")):
        scenario.server(name, location=location)
    assert scenario.added() == ["f"]


def test_standby_plan_is_kept_while_its_servers_are_eligible_and_followed():
    scenario = RepairScenario(tablets=6, repairs_per_server=9)
    scenario.group()
    for name in "def":
        scenario.server(name)
    assert scenario.due_orders() == []
    plan = scenario.repairs.standby.of("c")
    assert len(plan) == 6
    assert len(set(plan.values())) > 1, "the standby servers are spread"
    scenario.due_orders()
    assert scenario.repairs.standby.of("c") == plan
    scenario.server("a", *(f"{n}=a/1@1.1:a,b,c!c" for n in scenario.names))
    scenario.servers.get("c").full_in_term = 0
    added = {a.tablet: a.step for a in scenario.due_orders()}
    assert added == {tablet: Add(standby) for tablet, standby in plan.items()}
    scenario.listed(*"abcdef")
    scenario.mark("d", maintenance=True)
    scenario.due_orders()
    assert "d" not in scenario.repairs.standby.of("c").values()


@pytest.mark.row("S3.5")
def test_new_server_gets_its_share_of_standby_plans():
    scenario = RepairScenario(tablets=40)
    scenario.group()
    for name in "de":
        scenario.server(name)
    scenario.due_orders()
    before = scenario.repairs.standby.of("c")
    for name in "fg":
        scenario.server(name)
    for _ in range(3):
        scenario.due_orders()
    after = scenario.repairs.standby.of("c")
    counts = {standby: list(after.values()).count(standby) for standby in "defg"}
    assert sum(counts.values()) == 40
    assert min(counts.values()) >= 4, counts
    moved = [t for t in after if after[t] != before[t]]
    assert len(moved) <= 40 - 2 * 6, "a server with its share keeps it"
    scenario.due_orders()
    assert scenario.repairs.standby.of("c") == after


@pytest.mark.row("S1.29")
def test_decommissioned_server_is_drained_one_replica_at_a_time_and_gets_none():
    scenario = RepairScenario(tablets=2, repairs_per_server=9)
    scenario.group()
    scenario.server("d")
    scenario.listed(*"abcd")
    scenario.mark("b", decommission=True)
    assert scenario.added() == ["d", "d"]
    assert "b" not in scenario.repairs.standby.of("c").values()
    scenario.group("1.2:a,b,c,d", others="bcd")
    steps = [a.step for a in scenario.due_orders()]
    assert steps == [Remove("b", "it was to be replaced")] * 2
    scenario.group("1.3:a,c,d", others="cd")
    scenario.server("b")
    assert scenario.due_orders() == []
    scenario.group("1.3:a,c,d", failed="d", others="c")
    assert scenario.added() == [], "the only other server is decommissioned"


@pytest.mark.parametrize("on", ["on", "off"])
def test_repair_can_be_switched_off(on):
    scenario = RepairScenario(repair=on)
    scenario.group(failed="c", others="b")
    scenario.server("d", "t0=a/1@1.0:a,b,d")
    scenario.server("e")
    assert bool(scenario.due_orders()) is (on == "on")
    assert scenario.catalog.tablet("t0").config_id != NO_OP


def test_witness_is_placed_on_server_that_never_had_the_tablet():
    scenario = RepairScenario()
    spec = scenario.catalog.require("t").edit()
    spec.spec.options["witness_first"] = "on"
    scenario.publish(CatalogPlan((), (spec,)))
    scenario.group(failed="c", others="b")
    scenario.server("d")
    seen = scenario.catalog.tablet("t0").edit()
    seen.reported_by.append("d")
    scenario.publish(CatalogPlan((seen,)))
    assert [a.step for a in scenario.due_orders()] == [Add("d")], "the server may have a tombstone"
    scenario.server("e")
    (change,) = scenario.due_orders()
    assert change.step == Add("e", witness=True)
    member = order(scenario.catalog, scenario.servers, change, pb.Fence(), 9)[1].changes[0].member
    assert (member.voter, member.promote, member.electable) == (False, False, False)
