"""Replicas of a lost server are spread by table first, as at the creation of a table."""

from collections import Counter
from typing import Any

import pytest

from nyala.common.ids import ServerUuid
from nyala.master.catalog import group_state
from nyala.master.catalog.actions import ChangeMembersAction
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.catalog.records.tables import TableState, TabletState
from nyala.wire.proto import catalog_pb2 as cat
from tests.unit.master.support.master_helpers import create_request
from tests.unit.master.support.master_repairs import RepairScenario

Add: Any = group_state.Add
TABLETS, OTHERS = 24, 40


def cluster() -> RepairScenario:
    """A table on a, b, c, which loses c; d and e are full of another table, f is empty."""
    scenario = RepairScenario(tablets=TABLETS, repairs_per_server=99, repairs_max=99)
    spec = create_request("other", replicas=1).table
    table = cat.TableRecord(id="o", state=TableState.RUNNING.value, spec=spec)
    words: dict[str, list[str]] = {"d": [], "e": []}
    records = []
    for n in range(OTHERS):
        server = "de"[n % 2]
        words[server].append(f"o{n}={server}/1@1.1:{server}")
        records.append(cat.TabletRecord(id=f"o{n}", table_id="o", state=TabletState.RUNNING.value))
    scenario.publish(CatalogPlan(tuple(records), (table,)))
    scenario.group(failed="c", others="b")
    for name, words_of_server in words.items():
        scenario.server(name, *words_of_server, catalog=True)
    scenario.server("f")
    return scenario


@pytest.mark.parametrize("by_will", [True, False])
def test_lost_replicas_of_one_table_are_spread_over_servers(by_will):
    scenario = cluster()
    if not by_will:
        scenario.repairs.standby.standby_of = lambda _lost, _tablet: None
    given = Counter(
        a.step.server
        for a in scenario.due_orders()
        if isinstance(a, ChangeMembersAction) and isinstance(a.step, Add)
    )
    assert sum(given.values()) == TABLETS
    assert max(given.values()) - min(given[s] for s in "def") <= 6, given


def test_standby_counts_are_per_table_and_removed_with_tablets():
    scenario = cluster()
    scenario.due_orders()
    standby = scenario.repairs.standby
    standbys = {s: standby.of(ServerUuid(s)) for s in "abcdef"}
    assert any(standbys.values())
    standby.retain(lambda _tablet: False)
    assert not any(standby.of(ServerUuid(s)) for s in "abcdef")
    scenario.due_orders()
    assert {s: standby.of(ServerUuid(s)) for s in "abcdef"} == standbys


def test_location_of_failed_member_is_free_for_its_successor():
    scenario = RepairScenario()
    scenario.server("a", "t0=a/1@1.1:a,b,c!c", location="r1", catalog=True)
    scenario.server("b", "t0=a/1@1.1:a,b,c", location="r2")
    scenario.server("c", location="r3")
    scenario.publish(
        CatalogPlan((cat.TabletRecord(id="o", table_id="t", state=TabletState.RUNNING.value),))
    )
    scenario.server("d", "o=d/1@1.1:d", location="r3", catalog=True)
    scenario.server("e", location="r2")
    scenario.repairs.standby.standby_of = lambda _lost, _tablet: None
    given = [a.step.server for a in scenario.due_orders() if getattr(a, "tablet", "") == "t0"]
    assert given == ["d"], "e has fewer replicas, but shares b's location"


def test_server_that_opens_its_replicas_gets_no_new_one():
    scenario = RepairScenario()
    scenario.group(failed="c", others="b")
    for name in "de":
        scenario.server(name)
    opening = scenario.servers.get(ServerUuid("d"))
    opening.opening = 3
    assert scenario.added() == ["e"]
    opening.opening, scenario.servers.get(ServerUuid("e")).opening = 0, 3
    assert scenario.added() == ["d"]
