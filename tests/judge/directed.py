"""Directed runs of the simulator for the judge: one frequent fault each, which is rare in random mixtures.

python -m tests.judge.directed [NAME ...]
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial

from tests.judge import directed_clients, directed_faults, directed_log
from tests.sim.faults.plan import Swarm
from tests.sim.runs.core_run import ask_outvoted_leaders, ask_paused_leaders, run_core
from tests.sim.systems.core_cluster import core, host
from tests.sim.systems.stores import WalLog
from tests.sim.world.loop import run
from tests.sim.world.swallowed import quiet

POWER = Swarm(
    crash_s=0.7, down_s=0.2, in_operation_rate=1, everyone_rate=0.1, loss_rate=0.02, slow_rate=0.05
)
"""Frequent power failures in the middle of file operations."""
CUT = Swarm(
    crash_s=1, down_s=0.2, everyone_rate=0.3, partition_s=1, partition_length_s=0.7, leader_rate=1
)
"""Partitioned leaders append entries that are replaced later; all servers restart."""
DAMAGED = Swarm(prone=1, flip_rate=0.01, crash_s=1, down_s=0.2, change_s=3, transfer_s=3)
"""Bit flips on one disk, membership changes, restarts."""
ERRORS = Swarm(prone=1, eio_rate=0.01, pause_s=1, pause_length_s=1, leader_rate=1, transfer_s=1)
"""Occasional I/O errors on one disk, frequent changes of leader."""
FLIPS = Swarm(prone=1, flip_rate=0.1, crash_s=0.8, down_s=0.2)
"""A bit flip in every tenth write of one disk, and in more reads."""
CLOCKS = Swarm(
    crash_s=1.5, down_s=0.2, everyone_rate=0.6, leader_rate=1, jump_s=0.7, skew_ms=20_000
)
"""Jumps of wall clocks, restarts of all servers."""
LEADERS = Swarm(
    pause_s=1.5,
    pause_length_s=1.5,
    leader_rate=1,
    partition_s=3,
    partition_length_s=1,
    skew_ms=2000,
)
"""Leaders deposed while they are paused or partitioned."""
AGAIN = Swarm(
    loss_rate=0.1,
    duplicate_rate=0.3,
    straggler_rate=0.05,
    crash_s=1.5,
    down_s=0.2,
    everyone_rate=0.3,
)
"""Duplicated calls, lost answers, restarts in between."""


def runs() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the runs by name, the quickest first."""
    yield "expiry", partial(run, directed_faults.sessions_expire_by_timestamps)
    yield "ahead", partial(run, directed_faults.read_from_leader_with_clock_ahead)
    yield "tails", partial(run, directed_log.torn_writes)
    yield "sessions", partial(run, directed_clients.equal_sessions_after_restart)
    yield "ceiling", partial(run, directed_clients.snapshot_before_clocks_jump_back)
    yield "outvoted", partial(ask_outvoted_leaders, 1, host)
    yield "flips", partial(run_core, 1, FLIPS, seconds=5, make=host)
    for seed in range(1, 4):
        yield (
            f"bitflip {seed}",
            partial(run, partial(directed_faults.bit_flip_while_one_lags, seed=seed)),
        )
    yield "down", partial(run, directed_faults.log_collected_while_one_is_down)
    yield "configuration", partial(run, directed_faults.configuration_collected_with_its_segment)
    for seed in range(1, 4):
        yield f"errors {seed}", partial(run_core, seed, ERRORS, seconds=8, make=host)
        yield f"damage {seed}", partial(run_core, seed, DAMAGED, seconds=8, make=host)
        yield f"cut {seed}", partial(run_core, seed, CUT, seconds=8, make=core(store=WalLog))
        yield f"log {seed}", partial(run_core, seed, POWER, seconds=8, make=core(store=WalLog))
        for name, swarm in (("again", AGAIN), ("clocks", CLOCKS), ("leaders", LEADERS)):
            yield f"{name} {seed}", partial(run_core, seed, swarm, seconds=8, make=host)
    yield "snapshots", partial(run, directed_clients.snapshots_of_deposed_leaders)
    yield "paused leaders, core", partial(ask_paused_leaders, 2, core())
    yield "paused leaders, replica", partial(ask_paused_leaders, 2, host)


@quiet()
def main(names: list[str]) -> int:
    """Run them until one fails; return the exit status."""
    for name, one in runs():
        if names and name.split()[0] not in names:
            continue
        try:
            one()
        except Exception as err:  # any effect of a mutant
            print(f"FAILED {name}: {type(err).__name__}: {str(err)[:150]}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
