"""One run of definitions under faults, or runs until a number of simulated hours is reached.

./run soak ddl                                     five simulated hours, or as many as fit
python -m tests.sim.runs.ddl_run --seed 7               one seed; with --lines N a transcript of a failure
"""

import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from tests.salt import REPEAT
from tests.sim.checkers.ddl_model import Model
from tests.sim.checkers.ddl_rules import CatalogWatch, orphan_lives, plant_orphan
from tests.sim.checkers.transcript import Recorder
from tests.sim.faults.ddl_masters import MasterHand
from tests.sim.faults.far_clocks import FarClocks
from tests.sim.faults.nemesis import Nemesis
from tests.sim.faults.plan import Swarm
from tests.sim.runs.ddl import define, settled
from tests.sim.runs.pool import judged
from tests.sim.runs.seeds import parser, seeds
from tests.sim.systems.cluster import REPAIRING, SimCluster
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.swallowed import quiet
from tests.sim.world.trace import Trace

CLIENTS = 5
TSERVERS = 4
SECONDS = 60.0
PAUSE_US = 800_000
"""Mean microseconds between two definitions of a client; an hour of one core is five simulated hours."""
SETTLE_S = 180
DEFINING = msgspec.structs.replace(
    REPAIRING, copy_wait_ms=8000, tablet_creation_timeout_ms=3000, history_max_age_s=15
)
"""Options under which copies without membership are deleted early, not after ten minutes. New tablets that
do not become RUNNING are replaced early, and those of dropped ranges deleted early."""
LEAST_DEFINITIONS_PER_S = 0.5
"""Acknowledged definitions per second below which the time of a run does not count."""


@dataclass(slots=True)
class Found:
    """Result of one seed.

    Attributes:
        report: readable report of a failure; empty if none.
        done: acknowledged definitions by kind.
        checks: number of checks of each rule.
        trace: the run's events; None if it ran in another process.
    """

    seed: int
    seconds: float
    report: str = ""
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    faults: int = 0
    settled_s: float = 0.0
    spent_s: float = 0.0
    done: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    trace: Trace | None = None

    @property
    def counted_s(self) -> float:
        """Simulated seconds that count: those under definitions and faults."""
        busy = self.acknowledged >= LEAST_DEFINITIONS_PER_S * self.seconds and self.faults
        return self.seconds if busy and not self.report else 0.0

    def line(self) -> str:
        """Return one readable line."""
        if self.report:
            return self.report
        thin = "" if self.counted_s else ", does not count: too little was done"
        return (
            f"ddl seed {self.seed}: {self.seconds:g} s and {self.settled_s:.0f} s to settle in "
            f"{self.spent_s:.1f} s of CPU, {self.acknowledged} definitions, {self.refused} refused, "
            f"{self.unknown} unknown, {self.faults} servers died, {_counts(self.done)}{thin}"
        )


def swarm_of(seed: int) -> Swarm:
    """Return the mixture that a seed draws."""
    pick = seeded(seed, "ddl swarm").choice
    return Swarm(
        crash_s=pick((1.5, 2, 4)), down_s=pick((0.3, 0.7, 2)), leader_rate=pick((0.3, 0.6, 1)),
        power_cut_rate=pick((0, 0.5, 1)), in_operation_rate=pick((0, 0.3, 0.7)),
        everyone_rate=pick((0, 0, 0.1)), partition_s=pick((0, 3, 6)), partition_length_s=1.5,
        pause_s=pick((0, 6, 12)), loss_rate=pick((0, 0.01, 0.05)), duplicate_rate=pick((0, 0.02, 0.1)),
        straggler_rate=pick((0, 0.05)), slow_rate=pick((0, 0.01)), slow_ms=pick((5, 200)),
        far_s=pick((0, 3, 10)), far_length_s=pick((1, 4, 8)),
    )  # fmt: skip


async def _scenario(loop: SimLoop, found: Found, pause_us: float) -> None:
    seed = found.seed
    cluster = SimCluster(loop, seed, tservers=TSERVERS, options=DEFINING)
    await cluster.start()
    await plant_orphan(cluster.tservers[0])
    model, watch = Model(), CatalogWatch(cluster)
    definers, working = await define(loop, cluster, model, CLIENTS, watch, pause_us)
    names = [p.name for p in (*cluster.servers, *cluster.clients)]
    rng, swarm, victims = seeded(seed, "nemesis"), swarm_of(seed), cluster.servers
    clocks = FarClocks(cluster, seeded(seed, "far clocks"), swarm.far_length_s)
    far = [(swarm.far_s, clocks.fault)]
    nemesis = Nemesis(cluster.network, victims, names, swarm, rng, cluster.leader_master, (), far)
    nemesis.start()
    watching = loop.create_task(clocks.watch())
    hand = MasterHand(cluster, victims)
    working.append(hand.process.run(hand.run))
    await loop.delay(found.seconds * 1e6)
    await nemesis.heal()
    healed_s = loop.time()
    hand.stopped = True
    for definer in definers:
        definer.stopped = True
    for work in working:
        await work
    core = cluster.client()  # all masters known to the first, idle client may be removed
    await cluster.run(cluster.clients[-1], settled, core, model)
    await _settle(loop, watch)
    await cluster.until(
        lambda: orphan_lives(cluster.tservers[0]), "the replica of an unknown tablet"
    )
    watch.look()
    cluster.look()
    if watching.done():
        watching.result()
    watching.cancel()
    found.settled_s = loop.time() - healed_s
    found.acknowledged, found.refused, found.unknown = (
        model.acknowledged, model.refused, model.unknown,
    )  # fmt: skip
    counts = loop.trace.counts
    found.faults = counts["kill"] + counts["power_cut"]
    found.done = sum((d.done for d in definers), hand.done)
    found.checks, found.trace = watch.checks, loop.trace


async def _settle(loop: SimLoop, watch: CatalogWatch) -> None:
    """Wait until every tablet is complete and no other replica exists."""
    end = loop.time() + SETTLE_S
    while why := watch.unsettled():
        assert loop.time() < end, f"not within {SETTLE_S} s: {why}"
        await loop.delay(500_000)


def run_ddl(
    seed: int, seconds: float, recorder: Recorder | None = None, *, pause_us: float = PAUSE_US
) -> Found:
    """Run one seed. Raises the failure."""
    found, began = Found(seed, seconds), time.process_time()
    run(
        lambda loop: _scenario(loop, found, pause_us),
        max_time_s=seconds + 600,
        max_events=40_000_000,
        recorder=recorder,
    )
    found.spent_s = time.process_time() - began
    return found


@quiet()
def judge(job: tuple[int, float, int]) -> Found:
    """Run one seed; the report has a failure, with a transcript of `lines` lines."""
    seed, seconds, lines = job
    try:
        found = run_ddl(seed, seconds)
    except Exception as err:  # any error is reported with the command that repeats it
        found = Found(seed, seconds)
        where = "".join(traceback.format_exception(err, limit=-4))
        command = (
            f"python -m tests.sim.runs.ddl_run --seed {seed} --seconds {seconds:g} --lines 200"
        )
        events = _transcript(seed, seconds, lines, str(err)) if lines else ""
        found.report = f"{events}{where}\nFAILED ddl seed {seed}\nrepeat it with: {REPEAT}{command}"
    found.trace = None  # the report is long
    return found


def _transcript(seed: int, seconds: float, lines: int, failure: str) -> str:
    recorder = Recorder()
    try:
        run_ddl(seed, seconds, recorder)
    except Exception as err:  # the same failure, unless the run is not deterministic
        again = "" if str(err) == failure else f"run again it failed otherwise: {err}\n"
        return recorder.show(lines, failure) + "\n" + again
    return "it did not fail when it was run again: the run is not deterministic\n"


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{what} {n}" for what, n in sorted(counter.items()))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 1 when a seed failed."""
    options = parser(__doc__, SECONDS)
    options.add_argument("--lines", type=int, default=0, help="of a failure's transcript")
    given = options.parse_args(arguments)
    total, done, checks = Counter[str](), Counter[str](), Counter[str]()
    jobs = ((n, given.seconds, given.lines) for n in seeds(given, lambda: total["counted_s"]))
    for found in judged(judge, jobs, given.workers):
        print(found.line(), flush=True)
        total["seeds"] += 1
        total["failed"] += bool(found.report)
        total["counted_s"] += round(found.counted_s)
        total["cpu_s"] += round(found.spent_s)
        done += found.done
        checks += found.checks
    print(f"done: {_counts(done)}\nchecked: {_counts(checks)}")
    print(
        f"{total['seeds']} seeds from {given.seed} on, {total['counted_s'] / 3600:.2f} simulated hours "
        f"counted, {total['cpu_s']} s of CPU, {total['failed']} failed"
    )
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
