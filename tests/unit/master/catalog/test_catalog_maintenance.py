"""The size of the masters' catalog depends on its rows, not on the number of reports."""

from nyala.common.ids import SYS_CATALOG
from nyala.common.options import Options
from nyala.tablet.tablet import Tablet
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.support.master_cluster import NAMES, with_masters
from tests.unit.master.support.master_helpers import create_request, report, server_info

TABLETS, TURN = 16, 80
OPTIONS = Options(wal_segment_mb=1, catalog_flush_bytes=16 << 10, catalog_history_max_age_s=2)


def catalog(masters, name):
    machine = masters.master(name).host.get(SYS_CATALOG).machine
    assert isinstance(machine, Tablet)
    return machine


async def table(masters, leader):
    """Create a table on three servers; return its tablets."""
    await masters.heartbeat("a", "b", "c")
    await masters.loop.delay(2_000_000)
    await masters.heartbeat("a", "b", "c")
    await masters.ask(leader, methods.CREATE_TABLE, create_request("t", TABLETS), 8000)
    listed = await masters.ask(leader, methods.DESCRIBE_TABLE, pb.DescribeTableRequest(name="t"))
    found = await masters.ask(
        leader, methods.TABLET_LOCATIONS, pb.TabletLocationsRequest(table_id=listed.id)
    )
    return [t.id for t in found.tablets]


async def changes(masters, leader, tablets, terms):
    """Report another leader of each tablet, term by term."""
    for term in terms:
        masters.sequence += 1
        await masters.ask(
            leader,
            methods.HEARTBEAT,
            pb.HeartbeatRequest(
                server=server_info("a"),
                report_sequence=masters.sequence,
                tablets=[report(t, leader="abc"[term % 3], term=term) for t in tablets],
            ),
        )
        await masters.loop.delay(5_000)


def sizes(masters):
    """Return versions on disk, bytes on disk, and bytes in memory of each master's catalog."""
    figures = [catalog(masters, name).figures() for name in NAMES]
    return [(f.versions, f.file_bytes, f.memory_bytes) for f in figures]


def test_catalog_rows_keep_one_version_after_thousands_of_reported_leaders():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        tablets = await table(masters, leader)
        assert len(tablets) == TABLETS
        found = []
        for turn in range(2):
            await changes(masters, leader, tablets, range(1 + turn * TURN, (turn + 1) * TURN))
            await masters.loop.delay(4_000_000)
            await changes(masters, leader, tablets, [(turn + 1) * TURN])
            await masters.loop.delay(5_000_000)
            assert await masters.leader() == leader
            found.append(sizes(masters))
        for versions, file_bytes, memory_bytes in (m for turn in found for m in turn):
            assert versions < 100, found  # 2,500 were written
            assert file_bytes < 64 << 10, found
            assert memory_bytes < 32 << 10, found
        masters.processes[leader].kill()
        new = await masters.leader(tuple(n for n in NAMES if n != leader))
        listed = await masters.ask(new, methods.DESCRIBE_TABLE, pb.DescribeTableRequest(name="t"))
        answer = await masters.ask(
            new, methods.TABLET_LOCATIONS, pb.TabletLocationsRequest(table_id=listed.id)
        )
        assert {r.address for t in answer.tablets for r in t.replicas[:1]} == {
            "abc"[2 * TURN % 3] + ":1"
        }

    with_masters(work, options=OPTIONS)
