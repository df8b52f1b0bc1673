"""A server that opens its replicas slowly keeps them while it makes progress; a hanging one does not."""

import re
from collections import Counter

import msgspec
import pytest

from nyala.client.journal.core import JournalCore
from nyala.common.errors import Unavailable
from nyala.common.ids import SYS_CATALOG, OpId, TabletId
from nyala.machines import registry
from nyala.master.catalog.group_state import ReplicaHealth
from nyala.master.catalog.records.tables import CatalogTablet
from nyala.master.repair.observe import RepairView, group_state
from nyala.master.repair.ordered_copies import OrderedCopies
from nyala.master.tservers import LeaderReport, TServer
from nyala.tserver.reports import ChangeLog, MasterView
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import OPTIONS, SimCluster
from tests.sim.world.loop import run
from tests.unit.master.support.master_helpers import server_info

FAILED_MS = 5000
TABLETS = 32
QUICK = msgspec.structs.replace(
    OPTIONS, member_failed_after_ms=FAILED_MS, repair_interval_ms=200, tserver_unresponsive_ms=2000
)


@pytest.mark.row("A9")
def test_slowly_starting_server_is_not_replaced():
    async def main(loop):
        cluster = SimCluster(loop, 3, tservers=4, options=QUICK)
        core = await cluster.start()
        await cluster.create_table(core, "t", tablets=TABLETS // 2)
        for number in range(TABLETS // 2):
            await cluster.run(
                cluster.clients[-1], JournalCore(core).create, f"j{number}", 3, 1 << 30
            )
        groups = sorted({g for _, g, _ in cluster.replicas() if g != SYS_CATALOG})
        victim = cluster.tservers[0]
        held = [g for p, g, _ in cluster.replicas() if p is victim]
        kinds = Counter(registry.kind_of_machine(victim.server.host.find(g).machine) for g in held)
        assert all(kinds[kind] > 5 for kind in registry.KINDS)
        assert len(held) > 15
        victim.kill()
        victim.delays.compute_us = 0.6e6  # a mean: one alone stays below FAILED_MS
        began_us = loop.now_us()
        started = victim.start()
        told = [""]
        await cluster.until(lambda: victim.server is not None, "its process runs", 60)
        while not started.done():
            with pytest.raises(Unavailable) as err:
                victim.server.maintenance_page()
            found = re.search(r"opens replica \d+( of \d+)?|reads its log", err.value.message)
            if found and found[0] != told[-1]:
                told.append(found[0])
            await loop.delay(50_000)
        assert told[1] == "reads its log"
        assert told[-1].endswith(f" of {len(held)}")
        assert len(told) > len(held) // 2
        assert loop.now_us() - began_us > 2 * FAILED_MS * 1000, (
            "the start took longer than FAILED_MS"
        )
        victim.delays.compute_us = 500.0
        await loop.delay(FAILED_MS * 1000)
        for group in groups:
            leader = cluster.leader_of(group)
            assert leader is not None
            config = leader.server.host.find(group).status().committed_config
            assert (config.id.index, len(config.voters)) == (0, 3), "no member was added or removed"
        assert sorted(g for p, g, _ in cluster.replicas() if p is victim) == sorted(held)

    run(main, max_time_s=600)


@pytest.mark.full
@pytest.mark.row("A9")
def test_table_creation_waits_for_starting_server():
    async def main(loop):
        cluster = SimCluster(loop, 3, tservers=3, options=QUICK)
        core = await cluster.start()
        await cluster.create_table(core, "t", tablets=TABLETS)
        victim = cluster.tservers[0]
        uuid = victim.server.uuid
        victim.kill()
        victim.delays.compute_us = 0.3e6
        started = victim.start()
        master = cluster.leader_master()
        assert master is not None

        def opening():
            known = master.server.tservers.get(uuid)
            return known is not None and known.opening > 0

        await cluster.until(opening, "the master knows that it opens its replicas", 30)
        assert not started.done()
        await cluster.create_table(core, "u")
        assert started.done(), "its replicas were open before it got another one"

    run(main, max_time_s=600)


def test_starting_server_without_progress_is_replaced():
    server = TServer(server_info("c"), 0, replicas={TabletId("t"): "BOOTSTRAPPING"})
    copies = OrderedCopies(failed_us=100)
    member = pb.Member(uuid="c", voter=True, electable=True)
    consensus = pb.ConsensusState(config_term=1, config_index=1, leader="l", members=[member])
    tablet = CatalogTablet(cat.TabletRecord(id="t", consensus=consensus))
    report = LeaderReport(OpId(1, 1), {server.uuid: "FAILED"})
    leader = TServer(server_info("l"), 0, leader_reports={tablet.id: report})

    def warnings(now_us):
        known = {s.uuid: s for s in (server, leader)}
        look = RepairView(known, now_us, {}, lambda _: ())
        state = group_state(tablet, pb.TableSpec(replicas=3), look, copies)
        assert state is not None
        return state.members[0].health

    server.opening, server.opening_us = 3, 1000
    assert warnings(1100) is ReplicaHealth.SILENT
    assert warnings(1101) is ReplicaHealth.FAILED
    server.opening = 0
    assert warnings(9999) is ReplicaHealth.SILENT, (
        "the server serves other replicas and reopens this one"
    )
    server.replicas[TabletId("t")], server.opening_us = "RUNNING", 9000
    assert warnings(9100) is ReplicaHealth.SILENT, (
        "a replica opened just now counts as SILENT, not FAILED"
    )
    assert warnings(9101) is ReplicaHealth.FAILED


def test_full_report_is_sent_when_all_replicas_are_open():
    changes, view = ChangeLog(), MasterView()
    view.begin(changes)
    view.request_full()  # while the report of opening replicas is in flight
    view.on_response(leader=True, needs_full=False, acknowledged_sequence=view.sequence)
    assert view.begin(changes) == (True, [])
