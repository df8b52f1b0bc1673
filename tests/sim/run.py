"""`./run sim`: random seeds for some minutes, one line each; a failure prints the command that repeats it.

./run sim --seed 7                  one seed
./run sim --minutes 10              as many seeds as fit, from a random first one
./run sim --level wal --minutes 1   only Raft's core over the log
"""

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable

from tests.sim.cluster_run import run_cluster
from tests.sim.core_cluster import core, run_core
from tests.sim.faults import KINDS, Swarm, count, draw
from tests.sim.host_server import HostServer
from tests.sim.loop import seeded
from tests.sim.outcome import Outcome
from tests.sim.stores import WalLog

Level = Callable[[int, Swarm, float], Outcome]


def _core(seed: int, swarm: Swarm, seconds: float) -> Outcome:
    return run_core(seed, swarm, seconds=seconds, servers=3 if seed % 3 else 5)


def _wal(seed: int, swarm: Swarm, seconds: float) -> Outcome:
    return run_core(seed, swarm, seconds=seconds, make=core(store=WalLog))


def _host(seed: int, swarm: Swarm, seconds: float) -> Outcome:
    return run_core(seed, swarm, seconds=seconds, make=HostServer)


def _cluster(seed: int, swarm: Swarm, seconds: float) -> Outcome:
    return run_cluster(seed, swarm, seconds=seconds)


LEVELS: dict[str, Level] = {"core": _core, "wal": _wal, "host": _host, "cluster": _cluster}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 1 when a seed failed."""
    parser = argparse.ArgumentParser(prog="./run sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="the only seed, or with --minutes the first")
    parser.add_argument("--minutes", type=float, help="go on with further seeds for so long")
    parser.add_argument("--seconds", type=float, default=20, help="virtual time under faults")
    parser.add_argument("--level", choices=[*LEVELS], default=[*LEVELS][-1])
    given = parser.parse_args(arguments)
    first = random.randrange(1_000_000) if given.seed is None else given.seed
    end = time.monotonic() + 60 * (given.minutes or 0)
    total, failed, seeds, virtual_s, seed = Counter[str](), 0, 0, 0.0, first
    while True:
        outcome = _one(given.level, seed, given.seconds)
        failed += outcome is None
        if outcome is not None:
            total += count(outcome.trace)
            virtual_s += outcome.time_s if outcome.counts else 0
        seeds, seed = seeds + 1, seed + 1
        if time.monotonic() >= end:
            break
    print("faults: " + ", ".join(f"{kind} {total[kind]}" for kind in KINDS))
    print(
        f"{seeds} seeds from {first}, {virtual_s / 3600:.2f} simulated hours under load, {failed} failed"
    )
    return 1 if failed else 0


def _one(level: str, seed: int, seconds: float) -> Outcome | None:
    """Run one seed and print its line; None when it failed."""
    swarm = draw(seeded(seed, "swarm"))
    began = time.monotonic()
    try:
        outcome = LEVELS[level](seed, swarm, seconds)
    except Exception as err:  # reported with the command that repeats it; the next seed goes on
        print(f"seed {seed} FAILED: {err}\n  mixture: {swarm.text()}")
        traceback.print_exc(limit=-6)
        print(f"repeat it with: ./run sim --level {level} --seed {seed} --seconds {seconds:g}")
        sys.stdout.flush()
        return None
    spent = time.monotonic() - began
    history = outcome.history
    print(
        f"seed {seed}: {outcome.trace.digest()[:12]} {outcome.time_s:.0f} s, {outcome.events} events "
        f"({outcome.events / spent:,.0f}/s), {history.acknowledged} acknowledged "
        f"({history.acknowledged / outcome.time_s:.0f}/s), {history.failed} failed, "
        f"{history.unknown} unknown, {outcome.terms} terms, "
        f"{sum(count(outcome.trace).values())} faults{'' if outcome.counts else ' (thin)'}",
        flush=True,
    )
    return outcome


if __name__ == "__main__":
    sys.exit(main())
