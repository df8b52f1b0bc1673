"""Named stories on the whole cluster: each ends with healed faults, linearizable histories, invariants.

The workload runs through all of them; what a story asserts comes on top of `Stage` and `finish`.
"""

import contextlib

import pytest

from nyala.client.core import ClientOptions
from nyala.common.errors import NyalaError
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.runs.stories import Stage, dies_in, play, reads_from_paused_leaders
from tests.sim.runs.workload import Failed, Unknown
from tests.sim.systems.table_client import TableClient, rows_of


def test_leader_crash_during_write():
    async def story(stage: Stage) -> None:
        for _ in range(3):
            leader = await stage.leader()
            leader.disk.die_when = dies_in("append", "/wal/")
            await stage.death(leader)
            leader.power_cut()
            await stage.leader(but=leader)
            await stage.acknowledged()
            leader.start()
            await stage.seconds(1)

    cluster = play(story)
    assert cluster.loop.trace.counts["death_in_file_operation"] == 3


@pytest.mark.row("S4.2")
def test_restart_of_all_servers_after_power_failure():
    async def story(stage: Stage) -> None:
        for _ in range(2):
            await stage.acknowledged(60)
            for server in stage.cluster.servers:
                server.kill(power_cut=True)
            await stage.seconds(1)
            for server in stage.cluster.servers:
                server.start()
            await stage.leader()
            await stage.acknowledged(20, timeout_s=60)

    play(story)


def test_partition_of_leader_with_clients_on_both_sides():
    async def story(stage: Stage) -> None:
        leader = await stage.leader()
        left = [leader.name, "client-1"]
        stage.network.partition(left, [n for n in stage.names if n not in left])
        await stage.leader(but=leader)
        await stage.acknowledged(30, timeout_s=60)
        stage.network.heal()
        await stage.acknowledged(30)

    play(story)


def test_one_way_partition_of_a_leader():
    async def story(stage: Stage) -> None:
        for deaf in (True, False):
            leader = await stage.leader()
            others = [n for n in stage.names if n != leader.name]
            if deaf:
                stage.network.cut(others, [leader.name])
            else:
                stage.network.cut([leader.name], others)
            await stage.leader(but=leader)
            await stage.acknowledged(20, timeout_s=60)
            stage.network.heal()
            await stage.acknowledged(20)

    play(story)


def test_torn_log_tail_of_follower():
    async def story(stage: Stage) -> None:
        for n in range(6):
            follower = (await stage.followers())[n // 3]
            follower.disk.die_when = dies_in(("append", "sync")[n % 2], "/wal/")
            await stage.death(follower)
            follower.power_cut()
            await stage.acknowledged(20)
            follower.start()
            await stage.seconds(2)

    counts = play(story).loop.trace.counts
    assert counts["crash_keeps_prefix"] + counts["crash_keeps_sectors"] > 0


def test_crash_during_flush():
    async def story(stage: Stage) -> None:
        for kind in ("write_new", "rename", "sync_dir"):
            leader = await stage.leader()
            leader.disk.die_when = dies_in(kind, "/data/data/")
            fill = 0
            while leader.alive:
                fill += 1
                assert fill < 200, "no flush came"
                keys = [10**6 * fill + k for k in range(500)]
                with contextlib.suppress(Failed, Unknown):
                    await stage.do(stage.client.write, pb.UPSERT, rows_of(keys, keys))
            leader.power_cut()
            await stage.leader(but=leader)
            await stage.acknowledged()
            leader.start()
            await stage.seconds(2)

    play(story)


def test_operation_sent_by_two_processes_takes_effect_once():
    async def story(stage: Stage) -> None:
        cluster, one = stage.cluster, b"the same client!"
        options = ClientOptions(timeout_ms=8000, client_id=one, keep_results=True)
        for _ in range(2):
            core = cluster.client(options)
            process = cluster.clients[-1]
            table = await cluster.run(process, core.open_table, "t")
            twice = TableClient(core, table)  # type: ignore[arg-type]
            for key in range(-20, 0):
                errors = await cluster.run(process, twice.write, pb.INSERT, rows_of([key], [key]))
                assert errors == [], f"key {key} was inserted again: {errors}"

    play(story)


@pytest.mark.parametrize("dies", [True, False], ids=["leader dies", "answer lost"])
def test_client_retry_across_failover_takes_effect_once(dies: bool):
    async def story(stage: Stage) -> None:
        for key in range(-4, 0):
            leader = await stage.leader()
            stage.network.cut([leader.name], [stage.owner.name])
            writing = stage.owner.run(stage.client.write, pb.INSERT, rows_of([key], [key]))
            await stage.seconds(0.5)
            if dies:
                leader.kill(power_cut=True)
                await stage.leader(but=leader)
            stage.network.heal()
            assert await writing == [], f"key {key} was inserted twice"
            if dies:
                leader.start()
                await stage.seconds(1.5)

    play(story)


def test_clock_jumps_do_not_change_write_order():
    async def story(stage: Stage) -> None:
        for jump_s in (60, -120, 5, -3600):
            leader = await stage.leader()
            leader.clock.jump(jump_s * 1_000_000)
            await stage.acknowledged(20)
            leader.kill(power_cut=True)
            await stage.leader(but=leader)
            await stage.acknowledged(20)
            leader.start()

    play(story)


@pytest.mark.row("S4.29")
def test_paused_leader_cannot_serve_stale_reads():
    play(reads_from_paused_leaders, workers=6)


def test_minority_loses_only_unsynced_entries():
    async def story(stage: Stage) -> None:
        for n in range(6):
            follower = (await stage.followers())[n % 2]
            follower.delays.slow_rate = 0.5
            await stage.acknowledged(20)
            follower.kill(power_cut=True)
            await stage.acknowledged(20)
            follower.start()
            await stage.seconds(1)

    play(story)


def test_master_leader_crash_during_create_table():
    async def story(stage: Stage) -> None:
        cluster = stage.cluster
        for n in range(4):
            await cluster.until(cluster.leader_master, "a leader master")
            leader = cluster.leader_master()
            assert leader is not None
            making = stage.owner.run(
                stage.core.ddl.create_table,
                f"made-{n}",
                stage.client.table.schema,
                None,
                3,
                {},
            )
            await stage.seconds(0.002 * (n + 1))
            leader.kill(power_cut=True)
            await making
            fresh = cluster.client()
            await cluster.run(cluster.clients[-1], fresh.open_table, f"made-{n}")
            leader.start()
        names = [t.name for t in await stage.do(stage.core.tables)]
        assert names == ["made-0", "made-1", "made-2", "made-3", "t"]

    play(story)


def test_restarted_tablet_server_reports_its_replicas():
    async def story(stage: Stage) -> None:
        for server in stage.cluster.tservers:
            server.kill(power_cut=True)
            await stage.seconds(7)
            alive = {s.uuid for s in (await stage.do(stage.core.servers)).servers if s.alive}
            server.start()
            await stage.seconds(3)
            servers = (await stage.do(stage.core.servers)).servers
            back = {s.uuid for s in servers if s.alive}
            assert len(back) == len(alive) + 1
            described = await stage.do(stage.core.describe, "t")
            assert described.ready

    play(story, workers=1)


def test_snapshot_read_is_repeatable_across_failover():
    async def story(stage: Stage) -> None:
        await stage.acknowledged(50)
        at = await stage.do(stage.core.now)
        first = await stage.do(stage.client.scan, at)
        for _ in range(3):
            leader = await stage.leader()
            leader.kill(power_cut=True)
            await stage.leader(but=leader)
            await stage.acknowledged(20)
            assert await stage.do(stage.client.scan, at) == first
            leader.start()
            await stage.seconds(2)

    play(story)


def test_table_drop_succeeds_while_tablet_server_is_down():
    async def story(stage: Stage) -> None:
        cluster = stage.cluster
        core = cluster.client()
        owner = cluster.clients[-1]
        other = await cluster.create_table(core, "other", tablets=2)
        away = cluster.tservers[1]
        away.kill(power_cut=True)
        await cluster.run(owner, core.ddl.drop_table, "other")
        with pytest.raises(NyalaError):
            await cluster.run(owner, core.open_table, "other")
        await stage.seconds(1)
        away.start()
        gone = {t.id for t in other.tablets}
        await cluster.until(
            lambda: not any(group in gone for _, group, _ in cluster.replicas()),
            "deletion of every replica",
            60,
        )

    play(story)
