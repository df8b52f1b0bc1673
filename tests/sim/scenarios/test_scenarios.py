"""Named scenarios on the whole cluster: each ends with healed faults, linearizable histories, invariants.

The workload runs through all of them; what a scenario asserts comes on top of `ScenarioCluster` and `finish`.
"""

import contextlib

import pytest

from nyala.client.core import ClientOptions
from nyala.common.errors import NyalaError
from nyala.wire.proto import nyala_pb2 as pb
from tests.enough import enough
from tests.sim.runs.scenario import ScenarioCluster, dies_in, play, reads_from_paused_leaders
from tests.sim.runs.workload import Failed, Unknown
from tests.sim.systems.table_client import TableClient, rows_of


def test_leader_crash_during_write():
    async def scenario(running: ScenarioCluster) -> None:
        for _ in range(3):
            leader = await running.leader()
            leader.disk.die_when = dies_in("append", "/wal/")
            await running.death(leader)
            leader.power_cut()
            await running.leader(but=leader)
            await running.acknowledged()
            leader.start()
            await running.seconds(1)

    cluster = play(scenario)
    assert cluster.loop.trace.counts["death_in_file_operation"] == 3


@pytest.mark.row("S4.2")
def test_restart_of_all_servers_after_power_failure():
    async def scenario(running: ScenarioCluster) -> None:
        for _ in range(2):
            await running.acknowledged(60)
            for server in running.cluster.servers:
                server.kill(power_cut=True)
            await running.seconds(1)
            for server in running.cluster.servers:
                server.start()
            await running.leader()
            await running.acknowledged(20, timeout_s=60)

    play(scenario)


def test_partition_of_leader_with_clients_on_both_sides():
    async def scenario(running: ScenarioCluster) -> None:
        leader = await running.leader()
        left = [leader.name, "client-1"]
        running.network.partition(left, [n for n in running.names if n not in left])
        await running.leader(but=leader)
        await running.acknowledged(30, timeout_s=60)
        running.network.heal()
        await running.acknowledged(30)

    play(scenario)


def test_one_way_partition_of_a_leader():
    async def scenario(running: ScenarioCluster) -> None:
        for inbound in (True, False):
            leader = await running.leader()
            others = [n for n in running.names if n != leader.name]
            if inbound:
                running.network.cut(others, [leader.name])
            else:
                running.network.cut([leader.name], others)
            await running.leader(but=leader)
            await running.acknowledged(20, timeout_s=60)
            running.network.heal()
            await running.acknowledged(20)

    play(scenario)


def test_torn_log_tail_of_follower():
    async def scenario(running: ScenarioCluster) -> None:
        for n in range(6):
            follower = (await running.followers())[n // 3]
            follower.disk.die_when = dies_in(("append", "sync")[n % 2], "/wal/")
            await running.death(follower)
            follower.power_cut()
            await running.acknowledged(20)
            follower.start()
            await running.seconds(2)

    counts = play(scenario).loop.trace.counts
    torn = counts["crash_keeps_prefix"] + counts["crash_keeps_sectors"]
    enough(torn > 0, "a torn tail")


def test_crash_during_flush():
    async def scenario(running: ScenarioCluster) -> None:
        for kind in ("write_new", "rename", "sync_dir"):
            leader = await running.leader()
            leader.disk.die_when = dies_in(kind, "/data/data/")
            fill = 0
            while leader.alive:
                fill += 1
                assert fill < 200, "no flush took place"
                keys = [10**6 * fill + k for k in range(500)]
                with contextlib.suppress(Failed, Unknown):
                    await running.do(running.client.write, pb.UPSERT, rows_of(keys, keys))
            leader.power_cut()
            await running.leader(but=leader)
            await running.acknowledged()
            leader.start()
            await running.seconds(2)

    play(scenario)


def test_operation_sent_by_two_processes_takes_effect_once():
    async def scenario(running: ScenarioCluster) -> None:
        cluster, one = running.cluster, b"the same client!"
        options = ClientOptions(timeout_ms=8000, client_id=one, keep_results=True)
        for _ in range(2):
            core = cluster.client(options)
            process = cluster.clients[-1]
            table = await cluster.run(process, core.open_table, "t")
            twice = TableClient(core, table)  # type: ignore[arg-type]
            for key in range(-20, 0):
                errors = await cluster.run(process, twice.write, pb.INSERT, rows_of([key], [key]))
                assert errors == [], f"key {key} was inserted again: {errors}"

    play(scenario)


@pytest.mark.parametrize("dies", [True, False], ids=["leader dies", "answer lost"])
def test_client_retry_across_failover_takes_effect_once(dies: bool):
    async def scenario(running: ScenarioCluster) -> None:
        for key in range(-4, 0):
            leader = await running.leader()
            running.network.cut([leader.name], [running.owner.name])
            writing = running.owner.run(running.client.write, pb.INSERT, rows_of([key], [key]))
            await running.seconds(0.5)
            if dies:
                leader.kill(power_cut=True)
                await running.leader(but=leader)
            running.network.heal()
            assert await writing == [], f"key {key} was inserted twice"
            if dies:
                leader.start()
                await running.seconds(1.5)

    play(scenario)


def test_clock_jumps_do_not_change_write_order():
    async def scenario(running: ScenarioCluster) -> None:
        for jump_s in (60, -120, 5, -3600):
            leader = await running.leader()
            leader.clock.jump(jump_s * 1_000_000)
            await running.acknowledged(20)
            leader.kill(power_cut=True)
            await running.leader(but=leader)
            await running.acknowledged(20)
            leader.start()

    play(scenario)


@pytest.mark.row("S4.29")
def test_paused_leader_cannot_serve_stale_reads():
    play(reads_from_paused_leaders, workers=6)


def test_minority_loses_only_unsynced_entries():
    async def scenario(running: ScenarioCluster) -> None:
        for n in range(6):
            follower = (await running.followers())[n % 2]
            follower.delays.slow_rate = 0.5
            await running.acknowledged(20)
            follower.kill(power_cut=True)
            await running.acknowledged(20)
            follower.start()
            await running.seconds(1)

    play(scenario)


def test_master_leader_crash_during_create_table():
    async def scenario(running: ScenarioCluster) -> None:
        cluster = running.cluster
        for n in range(4):
            await cluster.until(cluster.leader_master, "a leader master")
            leader = cluster.leader_master()
            assert leader is not None
            making = running.owner.run(
                running.core.ddl.create_table,
                f"made-{n}",
                running.client.table.schema,
                None,
                3,
                {},
            )
            await running.seconds(0.002 * (n + 1))
            leader.kill(power_cut=True)
            await making
            fresh = cluster.client()
            await cluster.run(cluster.clients[-1], fresh.open_table, f"made-{n}")
            leader.start()
        names = [t.name for t in await running.do(running.core.tables)]
        assert names == ["made-0", "made-1", "made-2", "made-3", "t"]

    play(scenario)


def test_restarted_tablet_server_reports_its_replicas():
    async def scenario(running: ScenarioCluster) -> None:
        for server in running.cluster.tservers:
            server.kill(power_cut=True)
            await running.seconds(7)
            alive = {s.uuid for s in (await running.do(running.core.servers)).servers if s.alive}
            server.start()
            await running.seconds(3)
            servers = (await running.do(running.core.servers)).servers
            back = {s.uuid for s in servers if s.alive}
            assert len(back) == len(alive) + 1
            described = await running.do(running.core.describe, "t")
            assert described.ready

    play(scenario, workers=1)


def test_snapshot_read_is_repeatable_across_failover():
    async def scenario(running: ScenarioCluster) -> None:
        await running.acknowledged(50)
        at = await running.do(running.core.now)
        first = await running.do(running.client.scan, at)
        for _ in range(3):
            leader = await running.leader()
            leader.kill(power_cut=True)
            await running.leader(but=leader)
            await running.acknowledged(20)
            assert await running.do(running.client.scan, at) == first
            leader.start()
            await running.seconds(2)

    play(scenario)


def test_table_drop_succeeds_while_tablet_server_is_down():
    async def scenario(running: ScenarioCluster) -> None:
        cluster = running.cluster
        core = cluster.client()
        owner = cluster.clients[-1]
        other = await cluster.create_table(core, "other", tablets=2)
        absent = cluster.tservers[1]
        absent.kill(power_cut=True)
        await cluster.run(owner, core.ddl.drop_table, "other")
        with pytest.raises(NyalaError):
            await cluster.run(owner, core.open_table, "other")
        await running.seconds(1)
        absent.start()
        known = {t.id for t in other.tablets}
        await cluster.until(
            lambda: not any(group in known for _, group, _ in cluster.replicas()),
            "deletion of every replica",
            60,
        )

    play(scenario)
