"""The size of the masters' catalog depends on its rows, not on the number of reports."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.ids import SYS_CATALOG
from nyala.common.options import Options
from nyala.master.catalog.maintenance import CatalogMaintenance
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.ddl import operation
from nyala.master.ddl.operation import CatalogOperation
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.tablet import Tablet
from nyala.wire import methods
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.files import SimDisk
from tests.unit.master.support.master_cluster import NAMES, with_masters
from tests.unit.master.support.master_helpers import create_request, report, server_info
from tests.unit.tablet.support.tablet_support import Driver

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


class SystemCatalog:
    """A replica with a tablet of some rowsets; lanes run inline."""

    def __init__(self, tablet: Tablet) -> None:
        self.machine = tablet
        self.tasks = self

    def status(self) -> SimpleNamespace:
        return SimpleNamespace(applied_stamp=0)

    async def run(self, _lane, work, *args):
        return work(*args)

    async def maintain(self, prepare) -> bool:
        prepare()()()
        return True


def test_compaction_of_catalog_leaves_the_reserve_of_the_log_free():
    disk = SimDisk(random.Random(1))
    driver = Driver("data/t", files=disk.mount())
    for k in range(4):
        driver.write(RowOp.INSERT, [{"k": k}])
        driver.flush()
    replica: Any = SystemCatalog(driver.tablet)
    maintenance = CatalogMaintenance(replica, lambda: replica, Options(wal_reserve_mb=1))
    disk.faults.capacity_bytes = disk.used_bytes() + (1 << 20)
    with pytest.raises(OSError, match="leaves 1048576"):
        asyncio.run(maintenance.run_once(replica))
    disk.faults.capacity_bytes *= 2
    asyncio.run(maintenance.run_once(replica))
    assert len(driver.tablet.store.disks) == 1


@pytest.mark.full
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


async def decide(masters, leader, numbers, before):
    """Write decisions of transactions in one batch, and remove those before."""
    made = tuple(
        cat.DecisionRecord(transaction=n.to_bytes(16, "big"), at=n, tablet_ids=["t" * 32] * 3)
        for n in numbers
    )
    removed = tuple(n.to_bytes(16, "big") for n in before)

    async def write():
        term = masters.master(leader).leading.require()
        plan = CatalogPlan(decisions=made, removed=removed)
        wanted = CatalogOperation("decide", lambda _: Scope(), lambda _: plan)
        await operation.run(wanted, term.memory)

    await masters.processes[leader].run(write)


def test_size_of_catalog_follows_the_decisions_that_are_kept_not_those_that_were_made():
    async def work(masters):
        masters.start()
        leader = await masters.leader()
        before: range | tuple[()] = ()
        for turn in range(50):
            numbers = range(1 + turn * 200, 1 + (turn + 1) * 200)
            await decide(masters, leader, numbers, before)
            before = numbers
            await masters.loop.delay(200_000)
        await masters.loop.delay(5_000_000)
        await decide(masters, leader, range(1, 2), before)
        await masters.loop.delay(8_000_000)
        for versions, file_bytes, memory_bytes in sizes(masters):
            assert versions < 1_000, sizes(masters)  # 10,000 were written
            assert file_bytes + memory_bytes < 256 << 10, sizes(masters)

    with_masters(work, options=OPTIONS)
