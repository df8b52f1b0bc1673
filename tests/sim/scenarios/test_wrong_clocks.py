"""Clocks that are wrong: one of a whole cluster by years; those of the last two of a group by seconds."""

from nyala.client.journal.core import JournalCore
from nyala.common.hybrid_time import from_micros, to_micros
from nyala.common.options import Options
from nyala.common.partitioning.partition_spec import Partition, Range
from nyala.env.disciplined_clock import ISOLATION_US
from nyala.wire.proto import journal_pb2 as pb
from tests.sim.checkers.linearizability import Kind
from tests.sim.faults.plan import SKEW_MAX_MS
from tests.sim.runs.scenario import ScenarioCluster, play
from tests.sim.systems.cluster import SCHEMA, SimCluster
from tests.sim.systems.core_cluster import CoreCluster, host
from tests.sim.systems.table_client import TableClient
from tests.sim.world.loop import WALL_START_US, SimLoop, run
from tests.sim.world.process import SimProcess

YEAR_US = 365 * 86_400 * 1_000_000
LIMIT_MS = Options().clock_max_ahead_ms


def ahead_us(running: ScenarioCluster) -> int:
    """Return the largest lead of a running server's hybrid clock over true time."""
    now_us = WALL_START_US + running.loop.now_us()
    alive = [s for s in running.cluster.servers if s.alive and s.server is not None]
    return max(to_micros(s.server.info().hybrid_time) - now_us for s in alive)


def test_single_clock_wrong_by_years_affects_no_other_server():
    async def scenario(running: ScenarioCluster) -> None:
        await running.acknowledged(20)
        for number, years in enumerate((24, -40)):
            for starts in (False, True):
                wrong = running.cluster.tservers[number] if starts else await running.leader()
                if starts:
                    wrong.kill(power_cut=True)
                wrong.clock.jump(years * YEAR_US)
                if starts:
                    wrong.start()
                for _ in range(3):
                    await running.acknowledged(10)
                    assert ahead_us(running) < LIMIT_MS * 1000
                wrong.clock.jump(-years * YEAR_US)
                await running.acknowledged(10)
        assert ahead_us(running) < LIMIT_MS * 1000

    play(scenario)


def test_client_that_saw_a_wrong_clock_can_write():
    """A server that was wrong by more than the limit has answered it; its steps and writes succeed."""

    async def scenario(running: ScenarioCluster) -> None:
        core = running.cluster.client()
        process = running.cluster.clients[-1]
        journals = JournalCore(core)
        journal = await running.cluster.run(process, journals.create, "ops", 3, 1 << 20)
        opened = await running.cluster.run(process, core.open_table, "t")
        table = TableClient(core, opened)  # type: ignore[arg-type]
        for ahead_ms in (LIMIT_MS + 2_000, 10 * YEAR_US // 1000):
            now_us = WALL_START_US + running.loop.now_us()
            core.clock.merge(from_micros(now_us + ahead_ms * 1000))
            append = pb.JournalChange(append=pb.AppendEntry(log="a", data=b"1"))
            await running.cluster.run(process, journals.step, journal, [], [append])
            assert not await running.cluster.run(process, table.change, Kind.DELETE, 1 << 40, 0)

    play(scenario)


async def two_that_are_apart(loop: SimLoop, by_us: int) -> tuple[CoreCluster, SimProcess]:
    """Return a group that lost one of three members, and the server that is ahead by twice `by_us`."""
    cluster = CoreCluster(loop, 1, 3, host)
    for server in cluster.servers:
        server.start()
    cluster.add_workers(3)
    await cluster.until(lambda: cluster.leader() is not None, "a leader")
    dead, ahead, behind = cluster.servers
    dead.kill(power_cut=True)
    for server, step_us in ((ahead, by_us), (behind, -by_us)):
        server.clock.jump(step_us)
        await loop.delay(1_000_000)
    return cluster, ahead


def test_clocks_within_simulated_offsets_stop_no_group():
    """Regression of the default options: simulated runs require progress with such clocks."""

    async def main(loop: SimLoop) -> None:
        cluster, _ = await two_that_are_apart(loop, SKEW_MAX_MS * 1000)
        await cluster.progress()

    run(main)


def test_servers_refusing_each_others_times_resume_after_clock_correction():
    async def main(loop: SimLoop) -> None:
        cluster, ahead = await two_that_are_apart(loop, 6_500_000)
        await loop.delay(20_000_000)
        assert cluster.leader() is None
        before = cluster.history.acknowledged
        await loop.delay(20_000_000)
        assert cluster.history.acknowledged == before
        ahead.clock.jump(-6_500_000)
        await cluster.progress()

    run(main)


def test_server_without_peers_keeps_the_masters_time_when_its_clock_jumps():
    """Else its tablets would have times far ahead, and no other server could take copies of them."""

    async def scenario(loop: SimLoop) -> None:
        cluster = SimCluster(loop, 3, tservers=1)
        core = await cluster.start()
        one_part = Partition(hash=[], range=Range(["k"], [(0, 10)]))
        await cluster.run(cluster.clients[0], core.ddl.create_table, "t", SCHEMA, one_part, 1, {})
        (alone,) = cluster.tservers
        for starts in (False, True):
            await loop.delay(2 * ISOLATION_US)
            if starts:
                alone.kill(power_cut=True)
            alone.clock.jump(YEAR_US)
            if starts:
                alone.start()
            await loop.delay(4 * ISOLATION_US)
            now_us = WALL_START_US + loop.now_us()
            assert to_micros(alone.server.info().hybrid_time) - now_us < LIMIT_MS * 1000
            alone.clock.jump(-YEAR_US)

    run(scenario, max_time_s=300)
