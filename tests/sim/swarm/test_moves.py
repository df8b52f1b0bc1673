"""Planted mistakes in copies of replicas: directed copies detect them, and moves under swarm faults do.

A directed copy has no fault but the one that shows the mistake, so that no chance is involved.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from nyala.common.ids import TabletId
from nyala.raft.messages import Entry
from nyala.raft.node import RaftNode
from nyala.replica.context import ReplicaContext
from nyala.replica.copy import fetcher
from nyala.replica.copy import target as copy_target
from nyala.replica.copy.source_holds import SourceHolds
from nyala.replica.member.bootstrap import Opened
from nyala.replica.member.client_sessions import ClientSessions
from tests.judge.directed_clients import started
from tests.sim.faults.plan import Swarm
from tests.sim.faults.replica_moves import HELD, HELD_S, Mover
from tests.sim.runs.core_run import run_core
from tests.sim.systems.core_cluster import CoreCluster, hosts, moving
from tests.sim.systems.moving_server import MovingServer
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.process import SimProcess

BUSY = Swarm(transfer_s=3, loss_rate=0.01)
DEADLY = Swarm(crash_s=1, down_s=1, in_operation_rate=0.3, partition_s=3, partition_length_s=1)
SEEDS = range(1, 33)
WRITES = 40


class Unflushed(MovingServer):
    """A server that flushes nothing: a copy consists of the log, in many chunks."""

    options = msgspec.structs.replace(
        MovingServer.options, flush_bytes=1 << 20, flush_log_bytes=1 << 20
    )


async def copied(loop: SimLoop) -> tuple[CoreCluster, SimProcess, SimProcess]:
    """Copy the leader's replica to a server without one; return both, while the source keeps its log."""
    cluster = await started(loop, WRITES, hosts(Unflushed), spares=1)
    source, target = cluster.leader(), cluster.servers[-1]
    assert source is not None
    await Mover(cluster, seeded(1, "moves")).copy(source, target)
    await cluster.until(lambda: target.server.node is not None, "the copy is a replica")
    assert len(source.server.host.copies.sessions) == 1
    return cluster, source, target


async def copied_log(loop: SimLoop) -> None:
    """The entries of a copy are on the disk of its target."""
    cluster, _, target = await copied(loop)
    assert target.server.node.core.log.last.index >= WRITES // 4
    await loop.delay(100_000)
    await cluster.progress()


async def dead_target(loop: SimLoop) -> None:
    """A source releases what it keeps for a target that has crashed."""
    cluster, source, target = await copied(loop)
    target.kill(power_cut=True)
    await cluster.until(lambda: not len(source.server.host.copies.sessions), HELD, HELD_S)
    await cluster.progress()


@pytest.mark.parametrize("scenario", [copied_log, dead_target])
def test_copied_log_is_durable_and_kept_for_no_dead_target(
    scenario: Callable[[SimLoop], Coroutine[Any, Any, Any]],
):
    run(scenario)


def caught(swarm: Swarm, match: str) -> str:
    """Run seeds until one fails as expected; return its message."""
    for seed in SEEDS:
        try:
            run_core(seed, swarm, seconds=6, make=moving)
        except AssertionError as err:
            if match not in str(err):
                raise
            return f"seed {seed}: {err}"
    raise AssertionError(f"seeds {SEEDS} pass: the mistake was not detected")


@pytest.fixture
def unsynced_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries of a copy are kept in memory only: a power failure would remove acknowledged ones."""
    kept: dict[tuple[str, str], list[Entry]] = {}

    async def write(
        context: ReplicaContext, group: TabletId, entries: list[Entry], *_: object
    ) -> None:
        before = kept.setdefault((context.uuid, group), [])
        if before and before[-1].id.index + 1 != entries[0].id.index:
            before.clear()  # another copy
        before.extend(entries)

    async def assemble(
        context: ReplicaContext, group: TabletId, saved: Any, _: Any, machine: Any, to: int
    ) -> Opened:
        hard_state, config = saved
        flush_point = machine.flush_point
        entries = kept.pop((context.uuid, group), [])
        node = RaftNode(
            context.uuid, config, hard_state, [e for e in entries if e.id.index > flush_point.op.index],
            base=flush_point.op, base_stamp=flush_point.stamp, commit_index=max(flush_point.op.index, to),
            applied_index=flush_point.op.index, options=context.raft_options(),
            random=context.env.random.randrange,
        )  # fmt: skip
        return Opened(node, machine, ClientSessions.load(flush_point.extra))

    monkeypatch.setattr(fetcher, "append_to_log", write)
    monkeypatch.setattr(copy_target, "assemble", assemble)


@pytest.fixture
def endless_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source permanently keeps the files of a dead target."""

    async def watch(self: SourceHolds) -> None:
        return

    monkeypatch.setattr(SourceHolds, "_watch", watch)


@pytest.mark.row("S1.7")
@pytest.mark.usefixtures("unsynced_log")
def test_copy_with_unsynced_log_is_detected():
    with pytest.raises(AssertionError, match="its disk holds"):
        run(copied_log)


@pytest.mark.full
@pytest.mark.row("S1.7")
@pytest.mark.usefixtures("endless_sessions")
def test_sessions_without_end_are_detected():
    with pytest.raises(AssertionError, match=HELD):
        run(dead_target)


@pytest.mark.full
@pytest.mark.usefixtures("unsynced_log")
def test_moves_under_faults_detect_unsynced_log():
    print(caught(BUSY, "its disk holds"))


@pytest.mark.full
@pytest.mark.usefixtures("endless_sessions")
def test_moves_under_faults_detect_sessions_without_end():
    print(caught(DEADLY, HELD))
