"""Unsynced writes of a killed process are made durable before anything depends on them.

A file is replaced by a rename; between that and the sync of its directory the new one is seen by the next
process and undone by a power failure. A vote, a ceiling or a cut that was used must not be undone.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from nyala.common.ids import NO_OP, OpId, ServerUuid, TabletId
from nyala.datadir import instance
from nyala.env.clock import HybridClock
from nyala.env.files import Files
from nyala.raft.membership import Configuration
from nyala.raft.messages import HardState
from nyala.replica.state_machine import FlushPoint
from nyala.replica.superblock import ReplicaStage, Superblock, Superblocks
from nyala.replica.witness import Witness
from nyala.wal.cmeta import ConsensusMetadata
from tests.sim.world.files import SimDisk
from tests.sim.world.loop import ProcessDied

GROUP = TabletId("a" * 32)
VOTER = ServerUuid("b" * 32)


class At:
    """A wall clock that does not advance."""

    def __init__(self, wall_us: int) -> None:
        self._wall_us = wall_us

    def wall_us(self) -> int:
        return self._wall_us


def superblock(files: Files, new: int) -> object:
    blocks = Superblocks(files, "/data")
    if new:
        hard = HardState(new, VOTER)
        blocks.save(Superblock(GROUP, ReplicaStage.TOMBSTONED, hard, NO_OP, True))
    found = blocks.load(GROUP) if blocks.groups() else None
    return found and found.hard_state


def metadata(files: Files, new: int) -> object:
    saved = ConsensusMetadata(files, "/data")
    if new:
        saved.save(GROUP, HardState(new, VOTER), Configuration(()))
    return saved.load(GROUP) if saved.groups() else None


def ceiling(files: Files, new: int) -> object:
    clock: Any = At(new * 1_000_000_000)
    if new:
        HybridClock(clock, files, "/data/clock").now()
    return HybridClock(At(0), files, "/data/clock").peek()  # type: ignore[arg-type]


def identity(files: Files, new: int) -> object:
    found = instance.open_instance(files, "/data/w", "tserver", random.Random(1))
    if new == 2:
        found = instance.update(files, "/data/w", found, cluster_id="c", initialised=True)
    return found.initialised


def flush_point(files: Files, new: int) -> object:
    if new:
        Witness.create(files, "/data/w", FlushPoint(OpId(new, new), new))
    found = Witness.open(files, "/data/w")
    return found and found.flush_point


KEPT: list[Callable[[Files, int], object]] = [superblock, metadata, ceiling, identity, flush_point]


@pytest.mark.parametrize("kept", KEPT, ids=lambda k: k.__name__)
def test_state_read_at_start_survives_power_failure(kept):
    for seed in range(8):
        disk = SimDisk(random.Random(seed))
        disk.mount().make_dir("/data/w")
        kept(disk.mount(), 1)
        disk.kill()
        old = kept(disk.mount(), 0)
        disk.kill()
        renamed: list[str] = []

        def in_the_last_sync(kind, path, renamed=renamed):
            renamed += [path] if kind == "rename" else []
            return kind == "sync_dir" and bool(renamed)

        disk.die_when = in_the_last_sync
        with pytest.raises(ProcessDied):
            kept(disk.mount(), 2)
        disk.kill()
        read = kept(disk.mount(), 0)
        assert read != old
        disk.crash()
        assert kept(disk.mount(), 0) == read
