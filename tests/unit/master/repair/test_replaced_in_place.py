"""Replacement of an unrecoverable member on its own server: when, how fast, and how often."""

from typing import Any

import pytest

from nyala.master.catalog import actions, group_state
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.repair.next_steps import IN_PLACE
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.scenarios.report_notation import fill
from tests.unit.master.support.master_helpers import server_info
from tests.unit.master.support.master_repairs import FAILED_US, Around

Add: Any = group_state.Add
Remove: Any = group_state.Remove
CopyAction: Any = actions.CopyAction
DeleteTabletAction: Any = actions.DeleteTabletAction
EVICTED = [Remove("c", IN_PLACE, in_place=True)]


def lost(around, config="1.1:a,b,c", word="^c"):
    """The leader reports a state of c in every tablet; b and c report their replicas too."""
    words = [f"{n}=a/1@{config}" for n in around.names]
    around.server("a", *(w + word for w in words), catalog=True)
    for name in "bc":
        around.server(name, *words)


def changes(around):
    return [a.step for a in around.due_orders() if isinstance(a, actions.ChangeMembersAction)]


def test_member_that_needs_a_copy_is_replaced_on_its_own_server():
    around = Around()
    lost(around)
    assert changes(around) == EVICTED
    assert changes(around) == EVICTED, "the order was lost"
    around.group("1.2:a,b", others="b")
    around.server("c", "t0=a/1@1.1:a,b,c")
    assert around.due_orders() == [DeleteTabletAction("c", "t0")], (
        "first its old replica is deleted"
    )
    around.server("c")
    assert changes(around) == [Add("c")]
    around.group("1.3:a,b,+c", others="b")
    assert around.due_orders() == [CopyAction("c", "t0", "a")]
    around.group("1.4:a,b,c")
    assert around.due_orders() == []


@pytest.mark.parametrize("word", ["~FAILED", ""])
def test_member_with_failed_or_missing_replica_is_replaced_once_its_leader_has_given_it_up(word):
    around = Around()
    lost(around, word="?c")
    report = [f"t0=none/1@1.1:a,b,c{word}"] if word else []
    around.server("c", *report)
    assert changes(around) == [], "an operator may restart its server"
    lost(around, word="!c")
    assert changes(around) == [], "its own server has a replica that may return"
    around.server("c", *report)
    assert changes(around) == EVICTED
    around.servers.get("c").opening = 1
    assert changes(around) == [], "its server opens its replicas"
    around.servers.get("c").opening = 0
    around.servers.get("c").full_in_term = 0
    assert changes(around) == [], "its server has not reported"


def test_another_server_gets_the_replica_even_if_not_yet():
    around = Around(tablets=2, repairs_per_server=1)
    around.group()
    around.server("a", "t0=a/1@1.1:a,b,c^c", "t1=a/1@1.1:a,b,c!c", catalog=True)
    around.server("d")
    assert changes(around) == [Add("d")]
    moving = around.catalog.tablet("t1").edit()
    moving.consensus.members.add(uuid="d", promote=True, electable=True)
    around.publish(CatalogPlan((moving,)))
    assert changes(around) == [], "d is busy with the copy of t1"
    around.servers.get("d").full_in_term = 0
    assert changes(around) == [], "d has not reported yet"
    around.server("d", "t0=a/1@1.0:a,b,d")
    assert changes(around) == [], "its old replica is to be deleted first"
    around.listed(*"abcd")
    around.mark("d", maintenance=True)
    assert changes(around) == EVICTED


@pytest.mark.parametrize("mark", ["maintenance", "decommission"])
def test_excluded_server_keeps_its_unrecoverable_replica(mark):
    around = Around()
    around.listed(*"abcd")
    lost(around)
    around.mark("c", **{mark: True})
    assert changes(around) == []
    around.mark("c", **{mark: False})
    assert changes(around) == EVICTED


def test_replacement_in_place_counts_towards_limits():
    around = Around(tablets=4, repairs_per_server=3, repairs_max=2)
    lost(around)
    assert changes(around) == EVICTED * 2
    around = Around(tablets=4, repairs_per_server=1, repairs_max=9)
    lost(around)
    assert changes(around) == EVICTED


def test_replica_that_fails_again_and_again_is_replaced_less_and_less_often():
    around = Around()
    waits = []
    for config in range(1, 8):
        lost(around, f"1.{config}:a,b,c")
        began_us = around.now_us
        while changes(around) != EVICTED:
            around.now_us += FAILED_US // 4
        waits.append((around.now_us - began_us) / FAILED_US)
    assert waits == [0, 1, 2, 4, 8, 8, 8]
    around.now_us += 33 * FAILED_US
    lost(around, "2.1:a,b,c")
    assert changes(around) == EVICTED
    around.now_us += 1
    lost(around, "2.2:a,b,c")
    assert changes(around) == []


def failed_copy(around, config):
    """A copy to c makes no progress; it is removed."""
    around.group(f"{config}:a,b,+c", others="b")
    around.server("c")
    around.due_orders()
    around.now_us += FAILED_US + 1
    assert changes(around)[0].server == "c"
    around.group(f"{config}1:a,b", others="b")


def test_server_to_which_copies_fail_repeatedly_is_tried_later():
    around = Around()
    lost(around)
    assert changes(around) == EVICTED
    failed_copy(around, "1.2")
    assert changes(around) == []
    around.now_us += FAILED_US
    assert changes(around) == [Add("c")]
    failed_copy(around, "1.3")
    around.now_us += FAILED_US
    assert changes(around) == []
    around.now_us += FAILED_US
    assert changes(around) == [Add("c")]
    failed_copy(around, "1.4")
    around.server("d")
    assert changes(around) == [Add("d")], "another server can be tried at once"


def test_server_without_room_for_copies_does_not_prevent_replacement_in_place():
    around = Around()
    around.server("d")
    for n in range(2):
        around.server("a", f"t0=a/1@1.{n}2:a,b,c,+d!d^c", catalog=True)
        around.server("b")
        around.due_orders()
        around.now_us += FAILED_US + 1
        assert changes(around)[0].server == "d"
        lost(around, f"1.{n}3:a,b,c")
        assert changes(around) == ([Add("d")] if n == 0 else EVICTED)


def test_health_of_older_and_newer_servers_is_read():
    report = pb.TabletReport(tablet_id="t0")
    fill(report, "a", "a/1@1.1:a,b,c!b^c")
    request = pb.HeartbeatRequest(server=server_info("a"), full=True, tablets=[report])
    around = Around()
    server = around.servers.record_heartbeat(request, 1)
    around.servers.record_report(server, request, 5)
    health = server.leader_reports["t0"].health
    assert health == {"b": "FAILED", "c": "FAILED_UNRECOVERABLE"}
    assert [h.state for h in report.health] == ["FAILED", "FAILED"], (
        "the form that older masters read"
    )
