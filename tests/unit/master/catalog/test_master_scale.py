"""Cost of a large catalog, counted without a clock: heartbeats, rounds, tablets that a report reads."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.options import Options
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.catalog.records.tables import TabletState
from nyala.master.ddl import create_table, tablet_report
from nyala.master.ddl.create_table import PlanInputs
from nyala.master.group.status import ResponseHeader
from nyala.master.orders import reconcile
from nyala.master.orders.dispatcher import MAX_REPLICAS_CHECKED
from nyala.master.repair.repairer import MAX_CHECKED, Repairer
from nyala.master.repair.round_robin import ReplicaRoundRobin, TabletRoundRobin
from nyala.master.services.heartbeats import HeartbeatService
from nyala.master.tservers import TServers
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import seeded
from tests.unit.master.support.master_helpers import create_request, server_info

SERVERS = [server_info(name) for name in "abcd"]
TERM = 1
DELETED: Any = TabletState.DELETED.value


class Counted(Catalog):
    """A catalog that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def tablet(self, tablet_id: Any) -> Any:
        self.seen["one"] += 1
        return super().tablet(tablet_id)

    def tablets(self) -> Any:
        self.seen["all"] += self.size
        return super().tablets()

    def tablets_from(self, begin: int, most: int) -> Any:
        found = super().tablets_from(begin, most)
        self.seen["turn"] += len(found)
        return found

    @property
    def visited(self) -> int:
        """Return the number of tablets examined since the last call."""
        total, self.seen = self.seen.total(), Counter()
        return total


def consensus(tablet: Any) -> pb.ConsensusState:
    made = pb.ConsensusState()
    made.CopyFrom(tablet.consensus)
    made.term, made.leader = 1, tablet.members[0]
    return made


def take(catalog: Any, servers: Any, request: Any) -> None:
    """Take a report in, as the leader's heartbeat service does."""
    server = servers.record_heartbeat(request, 1)
    for wanted in tablet_report.operations(catalog, server.uuid, request.tablets, 1000):
        catalog.publish(catalog.draft(wanted.plan(catalog)))
    servers.record_report(server, request, TERM)


def report(info: Any, tablets: Any, number: int = 1, *, full: bool = True) -> pb.HeartbeatRequest:
    reports = [
        pb.TabletReport(
            tablet_id=t.id, state="RUNNING", consensus=consensus(t),
            role="LEADER" if t.members[0] == info.uuid else "FOLLOWER",
            health=[pb.MemberHealth(uuid=m, state="HEALTHY") for m in t.members if m != info.uuid],
        )
        for t in tablets
    ]  # fmt: skip
    return pb.HeartbeatRequest(server=info, full=full, report_sequence=number, tablets=reports)


def of(catalog: Any, info: Any) -> list[Any]:
    return [t for t in Catalog.tablets(catalog) if info.uuid in t.members]


def running(tablets: int) -> tuple[Any, Any]:
    """Return a catalog of `count` tablets of three replicas, all reported, and the servers."""
    catalog, servers = Counted(), TServers(1 << 60)
    plan_inputs = PlanInputs(SERVERS, seeded(1), 1, 10_000, 3)
    for number in range(tablets // 100):
        made = create_table.plan(catalog, create_request(f"t{number}", 100), plan_inputs)
        catalog.publish(catalog.draft(made))
    for info in SERVERS:
        take(catalog, servers, report(info, of(catalog, info)))
    assert not catalog.awaited()
    assert not catalog.creating()
    catalog.seen.clear()
    return catalog, servers


@pytest.mark.parametrize("tablets", [100, 600])
def test_heartbeat_of_unchanged_server_examines_no_tablet(tablets):
    catalog, servers = running(tablets)
    asked: list[str] = []
    dispatcher = SimpleNamespace(reported=lambda *_, full: asked.append("orders"))
    term = SimpleNamespace(
        catalog=catalog, memory=SimpleNamespace(term=TERM, dropped=None), dispatcher=dispatcher,
        background=SimpleNamespace(wake=lambda: asked.append("chores")),
    )  # fmt: skip
    env: Any = SimpleNamespace(clock=SimpleNamespace(monotonic_us=lambda: 1, wall_us=lambda: 1))
    leading: Any = SimpleNamespace(current=lambda: term)
    header = ResponseHeader("m", "", "", TERM, ("m:1",))
    service = HeartbeatService(env, servers, lambda: leading, lambda: header, Options())
    unchanged = pb.HeartbeatRequest(server=SERVERS[0], report_sequence=2)
    answer = asyncio.run(service.heartbeat(unchanged))
    assert answer.acknowledged_sequence == 2
    assert catalog.visited == 0
    assert asked == []


@pytest.mark.parametrize("tablets", [100, 600])
def test_report_cost_is_proportional_to_reported_tablets(tablets):
    catalog, servers = running(tablets)
    changed = of(catalog, SERVERS[0])[:3]
    catalog.seen.clear()
    take(catalog, servers, report(SERVERS[0], changed, 2, full=False))
    reconcile.after_report(catalog, servers.get("a"), [t.id for t in changed])
    assert 3 <= catalog.visited <= 12


@pytest.mark.parametrize("tablets", [600, 1200])
def test_repair_scan_examines_a_bounded_number_of_tablets(tablets):
    catalog, servers = running(tablets)
    known = servers.known_in(TERM, servers.alive(1))
    turns = ReplicaRoundRobin(MAX_REPLICAS_CHECKED)
    assert reconcile.orders_for(catalog, known, turns.next) == []
    assert 0 < catalog.visited <= MAX_REPLICAS_CHECKED * len(SERVERS)
    repairs = Repairer(catalog, servers, TERM, Options(), lambda: 1)
    assert repairs.due_orders() == []
    assert MAX_CHECKED <= catalog.visited <= MAX_CHECKED * (2 + len(SERVERS))


def test_repair_scan_covers_every_replica_including_unreported_ones():
    catalog, servers = running(1000)
    known, turns = servers.known_in(TERM, servers.alive(1)), ReplicaRoundRobin(MAX_REPLICAS_CHECKED)
    deleted = of(catalog, SERVERS[0])[-1].edit()
    deleted.state = DELETED  # deleted; the operation's orders were lost
    catalog.publish(catalog.draft(CatalogPlan((deleted,))))
    rounds = 2 * -(-len(servers.get("a").replicas) // MAX_REPLICAS_CHECKED)
    found = [a for _ in range(rounds) for a in reconcile.orders_for(catalog, known, turns.next)]
    assert Counter(a.server for a in found) == {m.uuid: 2 for m in deleted.consensus.members}
    assert {a.tablet for a in found} == {deleted.id}


def test_reported_tablets_are_scanned_first_then_all_in_rotation():
    catalog, _ = running(1000)
    attention, every = TabletRoundRobin(catalog, 300), [t.id for t in Catalog.tablets(catalog)]
    attention.next_tablets()
    attention.prioritize([every[900], every[10]])
    second = [t.id for t in attention.next_tablets()]
    assert second[:2] == [every[900], every[10]]
    assert second[2:] == every[300:600]
    rest = [t.id for _ in range(2) for t in attention.next_tablets()]
    assert rest == every[600:]
    assert [t.id for t in attention.next_tablets()] == every[:300]


def test_table_counts_follow_published_catalog():
    catalog, _ = running(300)

    def counted():
        found: Counter[str] = Counter()
        for tablet in Catalog.tablets(catalog):
            found.update(tablet.members if tablet.live else ())
        return dict(found)

    assert catalog.replica_counts() == counted()
    first, second = list(Catalog.tablets(catalog))[:2]
    moved, deleted = first.edit(), second.edit()
    moved.consensus.config_index = 7
    (free,) = {s.uuid for s in SERVERS} - set(first.members)
    moved.consensus.members[0].uuid = free
    deleted.state = DELETED
    joins = moved.consensus.members.add(uuid="e", promote=True)
    catalog.publish(catalog.draft(CatalogPlan((moved, deleted))))
    assert catalog.replica_counts() == counted()
    assert [t.id for t in catalog.moving()] == [moved.id]
    joins.voter, joins.promote = True, False
    catalog.publish(catalog.draft(CatalogPlan((moved,))))
    assert catalog.moving() == []
