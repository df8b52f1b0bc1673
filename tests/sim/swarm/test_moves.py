"""Replicas moved under swarm faults: planted mistakes in copies are detected."""

from typing import Any

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
from tests.sim.faults.plan import Swarm
from tests.sim.runs.core_run import run_core
from tests.sim.systems.core_cluster import moving

BUSY = Swarm(transfer_s=3, loss_rate=0.01)
DEADLY = Swarm(crash_s=1, down_s=1, in_operation_rate=0.3, partition_s=3, partition_length_s=1)
SEEDS = range(1, 9)


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


@pytest.mark.row("S1.7")
def test_copy_with_unsynced_log_is_detected(monkeypatch: pytest.MonkeyPatch):
    """Acknowledged entries that a power failure would remove: detected by the safety checks."""

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
    print(caught(BUSY, "its disk holds"))


@pytest.mark.row("S1.7")
def test_sessions_without_end_are_detected(monkeypatch: pytest.MonkeyPatch):
    """A source permanently keeps the files of a dead target: detected by the check of progress."""

    async def watch(self: SourceHolds) -> None:
        return

    monkeypatch.setattr(SourceHolds, "_watch", watch)
    print(caught(DEADLY, "held for ever"))
