"""Replicas moved about in the swarm: planted mistakes in copies are caught."""

import pytest

from nyala.replica import copy_fetch
from nyala.replica.copy_held import Held
from tests.sim.core_cluster import moving
from tests.sim.core_run import run_core
from tests.sim.faults import Swarm

BUSY = Swarm(transfer_s=3, loss_rate=0.01)
DEADLY = Swarm(crash_s=1, down_s=1, in_operation_rate=0.3, partition_s=3, partition_length_s=1)
SEEDS = range(1, 9)


def caught(swarm: Swarm, match: str) -> str:
    """Run seeds until one fails as it should; return its words."""
    for seed in SEEDS:
        try:
            run_core(seed, swarm, seconds=6, make=moving)
        except AssertionError as err:
            if match not in str(err):
                raise
            return f"seed {seed}: {err}"
    raise AssertionError(f"seeds {SEEDS} hold: the mistake was not caught")


@pytest.mark.row("S1.7")
def test_a_copy_whose_log_is_in_memory_only_is_caught(monkeypatch: pytest.MonkeyPatch):
    """It takes part, and acknowledges, with entries that a power cut would take away: caught by safety."""

    async def write(*_: object) -> None:
        return

    monkeypatch.setattr(copy_fetch, "write", write)
    print(caught(BUSY, "for durable; its disk holds"))


@pytest.mark.row("S1.7")
def test_sessions_that_never_end_are_caught(monkeypatch: pytest.MonkeyPatch):
    """What a target that died had held is held for ever: caught by progress."""

    async def watch(self: Held) -> None:
        return

    monkeypatch.setattr(Held, "_watch", watch)
    print(caught(DEADLY, "held for ever"))
