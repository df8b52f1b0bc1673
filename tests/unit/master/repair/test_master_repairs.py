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
from tests.unit.master.support.master_repairs import FAILED_US, TERM, Around

Add: Any = group_state.Add
Remove: Any = group_state.Remove
CancelCopyAction: Any = actions.CancelCopyAction
CopyAction: Any = actions.CopyAction
DeleteTabletAction: Any = actions.DeleteTabletAction
order: Any = order_requests.order


def test_repairs_are_limited_per_server_and_in_total():
    around = Around(tablets=9, repairs_per_server=2, repairs_max=5)
    around.group(failed="c", others="b")
    for name in "de":
        around.server(name)
    given = around.added()
    assert sorted(given) == ["d", "d", "e", "e"]
    around.server("f")
    assert len(around.added()) == 5
    around.repairs = Repairer(
        around.catalog,
        around.servers,
        TERM,
        Options(repairs_per_server=9, repairs_max=9),
        lambda: 1,
    )
    assert len(around.added()) == 9


def test_repairs_in_progress_count_towards_limits():
    around = Around(tablets=3, repairs_per_server=1, repairs_max=9)
    around.group(failed="c", others="b")
    around.server("d")
    first = around.catalog.tablet("t0").edit()
    first.consensus.members.add(uuid="d", promote=True)
    around.publish(CatalogPlan((first,)))
    assert around.added() == []


def test_copy_with_progress_continues_and_stalled_copy_fails():
    around = Around()
    around.group("1.2:a,b,c,+d", failed="c,d", others="b")
    around.server("d")
    copy = CopyAction("d", "t0", "a")
    for done in range(5):
        assert around.due_orders() == [copy]
        around.repairs.record_copy_progress(copy, pb.CopyProgress(stage="FILES", bytes_done=done))
        around.now_us += FAILED_US
    around.now_us += 1
    assert [a.step for a in around.due_orders()] == [
        Remove("d", "it was to become a replica, and has failed")
    ]


def test_repeatedly_failing_copy_counts_as_stalled():
    around = Around()
    around.group("1.2:a,b,c,+d", failed="c,d", others="b")
    around.server("d")
    around.due_orders()
    for n in range(4):
        progress = pb.CopyProgress(stage="FAILED" if n % 2 else "FILES", error=pb.Error(code="X"))
        around.repairs.record_copy_progress(CopyAction("d", "t0", "a"), progress)
        around.now_us += FAILED_US // 3
    assert isinstance(around.due_orders()[0], ChangeMembersAction)


def test_readded_replica_gets_a_full_copy_timeout():
    around = Around()
    around.group("1.2:a,b,c,+d", failed="c,d", others="b")
    around.server("d")
    around.due_orders()
    around.now_us += FAILED_US + 1
    assert around.added() == ["d"], "removed: no other server exists"
    around.group("1.3:a,b,c", failed="c", others="b")
    assert around.added() == ["d"], "added again on the same server"
    around.group("1.4:a,b,c,+d", failed="c,d", others="b")
    assert around.due_orders() == [CopyAction("d", "t0", "a")]


def test_unneeded_copy_is_cancelled_once():
    around = Around()
    around.group("1.2:a,b,c,+d", failed="c,d", others="b")
    around.server("d")
    around.due_orders()
    around.group("1.3:a,b,c")
    cancel = CancelCopyAction("d", "t0")
    assert around.due_orders() == [cancel]
    assert order(around.catalog, around.servers, cancel, pb.Fence(), 1)[0] is methods.CANCEL_COPY
    around.repairs.cancelled(cancel)
    assert around.due_orders() == []


def test_silent_replica_that_reported_failure_is_replaced_at_once():
    around = Around()
    around.group(others="b")
    around.server("a", "t0=a/1@1.1:a,b,c?c")
    around.server("d")
    assert around.added() == []
    around.server("c", "t0=none/1@1.1:a,b,c~FAILED")
    assert around.added() == ["d"]
    around.server("c", "t0=none/1@1.1:a,b,c~BOOTSTRAPPING")
    assert around.added() == [], "its server opens the replica, which may take long"
    around.server("c")
    assert around.added() == ["d"], "its server has no replica of it"


def test_leader_report_with_other_configuration_or_unknown_values_is_ignored():
    around = Around()
    around.group(failed="c", others="b")
    around.server("d")
    assert around.added() == ["d"]
    around.server("a", "t0=a/1@1.0:a,b,c!c")
    assert around.added() == []
    around.group(others="b")
    word = around.servers.get("a").leader_reports["t0"]
    around.servers.get("a").leader_reports["t0"] = type(word)(
        OpId(1, 1), {"b": "HEALTHY", "c": "BEWITCHED"}
    )
    assert around.added() == []


@pytest.mark.row("S1.10", "S1.22")
def test_removed_replicas_are_deleted_conditionally_and_orphans_and_members_kept():
    around = Around()
    around.group("2.7:a,b,c")
    around.server("d", "t0=a/1@1.1:a,b,d", "ffff=d/1@1.1:d")
    assert around.due_orders() == [DeleteTabletAction("d", "t0")]
    _, request = order(around.catalog, around.servers, DeleteTabletAction("d", "t0"), pb.Fence(), 1)
    assert (request.compare_config, request.config_term, request.config_index) == (True, 2, 7)
    assert (
        order(around.catalog, around.servers, DeleteTabletAction("c", "t0"), pb.Fence(), 1) is None
    )


def test_tablet_without_table_record_is_not_repaired():
    around = Around()
    around.group(failed="c", others="b")
    around.server("d", "t0=a/1@1.0:a,b,d")
    around.server("e")
    assert len(around.due_orders()) == 2
    lost = around.catalog.tablet("t0").edit()
    lost.table_id = "unknown"
    around.publish(CatalogPlan((lost,)))
    assert around.due_orders() == []


@pytest.mark.row("S0.42")
def test_configuration_change_based_on_older_configuration_is_not_sent():
    around = Around()
    around.group(failed="c", others="b")
    around.server("d")
    (change,) = around.due_orders()
    method, request = order(around.catalog, around.servers, change, pb.Fence(term=TERM), 9)
    assert method is methods.CHANGE_CONFIG
    assert (request.destination_uuid, request.config_term, request.config_index) == ("a", 1, 1)
    (edit,) = request.changes
    assert edit.kind == "add"
    assert (edit.member.uuid, edit.member.voter, edit.member.promote) == ("d", False, True)
    assert (edit.member.peer_address, edit.member.electable) == ("d:2", True)
    around.group("1.4:a,b,c", failed="c", others="b")
    assert order(around.catalog, around.servers, change, pb.Fence(), 9) is None


def test_replacement_is_placed_away_from_remaining_replicas():
    around = Around()
    around.server("a", "t0=a/1@1.1:a,b,c!c", location="r1", catalog=True)
    around.server("b", "t0=a/1@1.1:a,b,c", location="r2")
    for name, location in (("d", "r1"), ("e", "r2"), ("f", "r3")):
        around.server(name, location=location)
    assert around.added() == ["f"]


def test_standby_plan_is_kept_while_its_servers_are_eligible_and_followed():
    around = Around(tablets=6, repairs_per_server=9)
    around.group()
    for name in "def":
        around.server(name)
    assert around.due_orders() == []
    plan = around.repairs.standby.of("c")
    assert len(plan) == 6
    assert len(set(plan.values())) > 1, "the standby servers are spread"
    around.due_orders()
    assert around.repairs.standby.of("c") == plan
    around.server("a", *(f"{n}=a/1@1.1:a,b,c!c" for n in around.names))
    around.servers.get("c").full_in_term = 0
    added = {a.tablet: a.step for a in around.due_orders()}
    assert added == {tablet: Add(standby) for tablet, standby in plan.items()}
    around.listed(*"abcdef")
    around.mark("d", maintenance=True)
    around.due_orders()
    assert "d" not in around.repairs.standby.of("c").values()


@pytest.mark.row("S3.5")
def test_new_server_gets_its_share_of_standby_plans():
    around = Around(tablets=40)
    around.group()
    for name in "de":
        around.server(name)
    around.due_orders()
    before = around.repairs.standby.of("c")
    for name in "fg":
        around.server(name)
    for _ in range(3):
        around.due_orders()
    after = around.repairs.standby.of("c")
    counts = {standby: list(after.values()).count(standby) for standby in "defg"}
    assert sum(counts.values()) == 40
    assert min(counts.values()) >= 4, counts
    moved = [t for t in after if after[t] != before[t]]
    assert len(moved) <= 40 - 2 * 6, "a server with its share keeps it"
    around.due_orders()
    assert around.repairs.standby.of("c") == after


@pytest.mark.row("S1.29")
def test_decommissioned_server_is_drained_one_replica_at_a_time_and_gets_none():
    around = Around(tablets=2, repairs_per_server=9)
    around.group()
    around.server("d")
    around.listed(*"abcd")
    around.mark("b", decommission=True)
    assert around.added() == ["d", "d"]
    assert "b" not in around.repairs.standby.of("c").values()
    around.group("1.2:a,b,c,d", others="bcd")
    steps = [a.step for a in around.due_orders()]
    assert steps == [Remove("b", "it was to be replaced")] * 2
    around.group("1.3:a,c,d", others="cd")
    around.server("b")
    assert around.due_orders() == []
    around.group("1.3:a,c,d", failed="d", others="c")
    assert around.added() == [], "the only other server is decommissioned"


@pytest.mark.parametrize("on", ["on", "off"])
def test_repair_can_be_switched_off(on):
    around = Around(repair=on)
    around.group(failed="c", others="b")
    around.server("d", "t0=a/1@1.0:a,b,d")
    around.server("e")
    assert bool(around.due_orders()) is (on == "on")
    assert around.catalog.tablet("t0").config_id != NO_OP


def test_witness_is_placed_on_server_that_never_had_the_tablet():
    around = Around()
    spec = around.catalog.require("t").edit()
    spec.spec.options["witness_first"] = "on"
    around.publish(CatalogPlan((), (spec,)))
    around.group(failed="c", others="b")
    around.server("d")
    seen = around.catalog.tablet("t0").edit()
    seen.reported_by.append("d")
    around.publish(CatalogPlan((seen,)))
    assert [a.step for a in around.due_orders()] == [Add("d")], "the server may have a tombstone"
    around.server("e")
    (change,) = around.due_orders()
    assert change.step == Add("e", witness=True)
    member = order(around.catalog, around.servers, change, pb.Fence(), 9)[1].changes[0].member
    assert (member.voter, member.promote, member.electable) == (False, False, False)
