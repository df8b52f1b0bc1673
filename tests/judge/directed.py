"""Directed runs of the simulator for the judge: one harm at a time, where drawn mixtures meet it seldom.

python -m tests.judge.directed [NAME ...]
"""

import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial

from tests.judge import harms, stages, tails
from tests.sim.faults.plan import Swarm
from tests.sim.runs.core_run import ask_outvoted_leaders, ask_paused_leaders, run_core
from tests.sim.systems.core_cluster import core, host
from tests.sim.systems.stores import WalLog
from tests.sim.world.loop import run

STORM = Swarm(
    crash_s=0.7, down_s=0.2, in_operation_rate=1, everyone_rate=0.1, loss_rate=0.02, slow_rate=0.05
)
"""Power is cut in the middle of file operations, all the time."""
CUT = Swarm(
    crash_s=1, down_s=0.2, everyone_rate=0.3, partition_s=1, partition_length_s=0.7, leader_rate=1
)
"""Leaders write what nobody gets; it is replaced, and everybody starts again."""
DAMAGED = Swarm(prone=1, flip_rate=0.01, crash_s=1, down_s=0.2, change_s=3, transfer_s=3)
"""One disk turns bits, members come and go, and servers restart."""
ERRORS = Swarm(prone=1, eio_rate=0.01, pause_s=1, pause_length_s=1, leader_rate=1, transfer_s=1)
"""One disk fails now and then, while leaders change all the time."""
FLIPS = Swarm(prone=1, flip_rate=0.1, crash_s=0.8, down_s=0.2)
"""One disk turns a bit in every tenth write, and in more reads."""
CLOCKS = Swarm(
    crash_s=1.5, down_s=0.2, everyone_rate=0.6, leader_rate=1, jump_s=0.7, skew_ms=20_000
)
"""Wall clocks jump, and everybody starts again."""
LEADERS = Swarm(
    pause_s=1.5,
    pause_length_s=1.5,
    leader_rate=1,
    partition_s=3,
    partition_length_s=1,
    skew_ms=2000,
)
"""Leaders are deposed while they sleep or sit alone."""
AGAIN = Swarm(
    loss_rate=0.1,
    duplicate_rate=0.3,
    straggler_rate=0.05,
    crash_s=1.5,
    down_s=0.2,
    everyone_rate=0.3,
)
"""Calls arrive twice, answers are lost, and servers restart between."""


def runs() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the runs by name, the quickest to tell first."""
    yield "expiry", partial(run, harms.remembered_by_stamps)
    yield "ahead", partial(run, harms.read_from_a_leader_ahead)
    yield "tails", partial(run, tails.torn_tails)
    yield "sessions", partial(run, stages.same_sessions)
    yield "ceiling", partial(run, stages.snapshot_before_clocks_fall_back)
    yield "outvoted", partial(ask_outvoted_leaders, 1, host)
    yield "flips", partial(run_core, 1, FLIPS, seconds=5, make=host)
    for seed in range(1, 4):
        yield f"rot {seed}", partial(run, partial(harms.rot_while_one_lags, seed=seed))
    yield "away", partial(run, harms.collected_while_one_is_away)
    yield "configuration", partial(run, harms.collected_with_a_configuration)
    for seed in range(1, 4):
        yield f"errors {seed}", partial(run_core, seed, ERRORS, seconds=8, make=host)
        yield f"damage {seed}", partial(run_core, seed, DAMAGED, seconds=8, make=host)
        yield f"cut {seed}", partial(run_core, seed, CUT, seconds=8, make=core(store=WalLog))
        yield f"log {seed}", partial(run_core, seed, STORM, seconds=8, make=core(store=WalLog))
        for name, swarm in (("again", AGAIN), ("clocks", CLOCKS), ("leaders", LEADERS)):
            yield f"{name} {seed}", partial(run_core, seed, swarm, seconds=8, make=host)
    yield "snapshots", partial(run, stages.snapshots_of_old_leaders)
    yield "leaders asleep, core", partial(ask_paused_leaders, 2, core())
    yield "leaders asleep, replica", partial(ask_paused_leaders, 2, host)


def main(names: list[str]) -> int:
    """Run them until one fails; return the exit status."""
    logging.disable(logging.CRITICAL)  # the product logs what is meant to happen here
    for name, one in runs():
        if names and name.split()[0] not in names:
            continue
        try:
            one()
        except Exception as err:  # whatever a mistake leads to
            print(f"FAILED {name}: {type(err).__name__}: {str(err)[:150]}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
