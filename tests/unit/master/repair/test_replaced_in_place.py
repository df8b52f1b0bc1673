"""Replacement of an unrecoverable member on its own server: when, how fast, and how often."""

from typing import Any

import pytest

from nyala.master.catalog import actions, group_state
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.repair.next_steps import IN_PLACE
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.scenarios.report_notation import fill
from tests.unit.master.support.master_helpers import server_info
from tests.unit.master.support.master_repairs import FAILED_US, RepairScenario

Add: Any = group_state.Add
Remove: Any = group_state.Remove
CopyAction: Any = actions.CopyAction
DeleteTabletAction: Any = actions.DeleteTabletAction
EVICTED = [Remove("c", IN_PLACE, in_place=True)]


def lost(scenario, config="1.1:a,b,c", word="^c"):
    """The leader reports a state of c in every tablet; b and c report their replicas too."""
    words = [f"{n}=a/1@{config}" for n in scenario.names]
    scenario.server("a", *(w + word for w in words), catalog=True)
    for name in "bc":
        scenario.server(name, *words)


def changes(scenario):
    return [a.step for a in scenario.due_orders() if isinstance(a, actions.ChangeMembersAction)]


def test_member_that_needs_a_copy_is_replaced_on_its_own_server():
    scenario = RepairScenario()
    lost(scenario)
    assert changes(scenario) == EVICTED
    assert changes(scenario) == EVICTED, "the order was lost"
    scenario.group("1.2:a,b", others="b")
    scenario.server("c", "t0=a/1@1.1:a,b,c")
    assert scenario.due_orders() == [DeleteTabletAction("c", "t0")], (
        "first its old replica is deleted"
    )
    scenario.server("c")
    assert changes(scenario) == [Add("c")]
    scenario.group("1.3:a,b,+c", others="b")
    assert scenario.due_orders() == [CopyAction("c", "t0", "a")]
    scenario.group("1.4:a,b,c")
    assert scenario.due_orders() == []


@pytest.mark.parametrize("word", ["~FAILED", ""])
def test_member_with_failed_or_missing_replica_is_replaced_once_its_leader_has_given_it_up(word):
    scenario = RepairScenario()
    lost(scenario, word="?c")
    report = [f"t0=none/1@1.1:a,b,c{word}"] if word else []
    scenario.server("c", *report)
    assert changes(scenario) == [], "an operator may restart its server"
    lost(scenario, word="!c")
    assert changes(scenario) == [], "its own server has a replica that may return"
    scenario.server("c", *report)
    assert changes(scenario) == EVICTED
    scenario.servers.get("c").opening = 1
    assert changes(scenario) == [], "its server opens its replicas"
    scenario.servers.get("c").opening = 0
    scenario.servers.get("c").full_in_term = 0
    assert changes(scenario) == [], "its server has not reported"


def test_another_server_gets_the_replica_even_if_not_yet():
    scenario = RepairScenario(tablets=2, repairs_per_server=1)
    scenario.group()
    scenario.server("a", "t0=a/1@1.1:a,b,c^c", "t1=a/1@1.1:a,b,c!c", catalog=True)
    scenario.server("d")
    assert changes(scenario) == [Add("d")]
    moving = scenario.catalog.tablet("t1").edit()
    moving.consensus.members.add(uuid="d", promote=True, electable=True)
    scenario.publish(CatalogPlan((moving,)))
    assert changes(scenario) == [], "d is busy with the copy of t1"
    scenario.servers.get("d").full_in_term = 0
    assert changes(scenario) == [], "d has not reported yet"
    scenario.server("d", "t0=a/1@1.0:a,b,d")
    assert changes(scenario) == [], "its old replica is to be deleted first"
    scenario.listed(*"abcd")
    scenario.mark("d", maintenance=True)
    assert changes(scenario) == EVICTED


@pytest.mark.parametrize("mark", ["maintenance", "decommission"])
def test_excluded_server_keeps_its_unrecoverable_replica(mark):
    scenario = RepairScenario()
    scenario.listed(*"abcd")
    lost(scenario)
    scenario.mark("c", **{mark: True})
    assert changes(scenario) == []
    scenario.mark("c", **{mark: False})
    assert changes(scenario) == EVICTED


def test_replacement_in_place_counts_towards_limits():
    scenario = RepairScenario(tablets=4, repairs_per_server=3, repairs_max=2)
    lost(scenario)
    assert changes(scenario) == EVICTED * 2
    scenario = RepairScenario(tablets=4, repairs_per_server=1, repairs_max=9)
    lost(scenario)
    assert changes(scenario) == EVICTED


def test_replica_that_fails_again_and_again_is_replaced_less_and_less_often():
    scenario = RepairScenario()
    waits = []
    for config in range(1, 8):
        lost(scenario, f"1.{config}:a,b,c")
        began_us = scenario.now_us
        while changes(scenario) != EVICTED:
            scenario.now_us += FAILED_US // 4
        waits.append((scenario.now_us - began_us) / FAILED_US)
    assert waits == [0, 1, 2, 4, 8, 8, 8]
    scenario.now_us += 33 * FAILED_US
    lost(scenario, "2.1:a,b,c")
    assert changes(scenario) == EVICTED
    scenario.now_us += 1
    lost(scenario, "2.2:a,b,c")
    assert changes(scenario) == []


def failed_copy(scenario, config):
    """A copy to c makes no progress; it is removed."""
    scenario.group(f"{config}:a,b,+c", others="b")
    scenario.server("c")
    scenario.due_orders()
    scenario.now_us += FAILED_US + 1
    assert changes(scenario)[0].server == "c"
    scenario.group(f"{config}1:a,b", others="b")


def test_server_to_which_copies_fail_repeatedly_is_tried_later():
    scenario = RepairScenario()
    lost(scenario)
    assert changes(scenario) == EVICTED
    failed_copy(scenario, "1.2")
    assert changes(scenario) == []
    scenario.now_us += FAILED_US
    assert changes(scenario) == [Add("c")]
    failed_copy(scenario, "1.3")
    scenario.now_us += FAILED_US
    assert changes(scenario) == []
    scenario.now_us += FAILED_US
    assert changes(scenario) == [Add("c")]
    failed_copy(scenario, "1.4")
    scenario.server("d")
    assert changes(scenario) == [Add("d")], "another server can be tried at once"


def test_server_without_room_for_copies_does_not_prevent_replacement_in_place():
    scenario = RepairScenario()
    scenario.server("d")
    for n in range(2):
        scenario.server("a", f"t0=a/1@1.{n}2:a,b,c,+d!d^c", catalog=True)
        scenario.server("b")
        scenario.due_orders()
        scenario.now_us += FAILED_US + 1
        assert changes(scenario)[0].server == "d"
        lost(scenario, f"1.{n}3:a,b,c")
        assert changes(scenario) == ([Add("d")] if n == 0 else EVICTED)


def test_health_of_older_and_newer_servers_is_read():
    report = pb.TabletReport(tablet_id="t0")
    fill(report, "a", "a/1@1.1:a,b,c!b^c")
    request = pb.HeartbeatRequest(server=server_info("a"), full=True, tablets=[report])
    scenario = RepairScenario()
    server = scenario.servers.record_heartbeat(request, 1)
    scenario.servers.record_report(server, request, 5)
    health = server.leader_reports["t0"].health
    assert health == {"b": "FAILED", "c": "FAILED_UNRECOVERABLE"}
    assert [h.state for h in report.health] == ["FAILED", "FAILED"], (
        "the form that older masters read"
    )
