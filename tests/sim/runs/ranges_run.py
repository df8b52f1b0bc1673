"""One run of ranges that are added and dropped under readers and writers, or many runs within a time.

./run soak ranges                                  as many seeds as fit
python -m tests.sim.runs.ranges_run --seed 7            one seed
"""

import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from nyala.client.read.read_spec import ReadSpec
from nyala.common.partitioning.partition_spec import Partition, Range
from nyala.env.clock import CEILING_STEP_US
from tests.salt import REPEAT
from tests.sim.faults.nemesis import Nemesis
from tests.sim.faults.plan import Swarm
from tests.sim.runs.pool import judged
from tests.sim.runs.ranges import (
    FIRST,
    Change,
    Client,
    Definer,
    FeedFollower,
    Judge,
    Reader,
    Seen,
    Span,
    Writer,
    changes_of,
)
from tests.sim.runs.seeds import parser, seeds
from tests.sim.systems.cluster import REPAIRING, SCHEMA, SimCluster
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.swallowed import quiet
from tests.sim.world.trace import Trace

WRITERS, READERS, TSERVERS = 3, 3, 4
SECONDS = 60.0
DEFINE_US, WRITE_US, READ_US, FOLLOW_US = 1_200_000.0, 60_000.0, 250_000.0, 20_000.0
SETTINGS = msgspec.structs.replace(REPAIRING, tablet_creation_timeout_ms=3000)
OFFSET_MS = (SETTINGS.clock_max_ahead_ms - CEILING_STEP_US // 1000) // 2 - 500
"""No wall clock is further than this from true time, so that servers refuse no time of another.

Two are twice as far apart, and a server that was started again begins up to `CEILING_STEP_US` ahead of its
own. Here a refused time is a failure. `far_clocks.py` and test_wrong_clocks.py have clocks that are refused.
"""


@dataclass(slots=True)
class Found:
    """Result of one seed.

    Attributes:
        report: report of a failure; empty if none.
        seen: answers to clients.
        trace: the run's events.
    """

    seed: int
    report: str = ""
    spent_s: float = 0.0
    faults: int = 0
    seen: Seen = field(default_factory=Seen)
    trace: Trace | None = None

    def line(self) -> str:
        """Return one readable line."""
        done = ", ".join(f"{what} {n}" for what, n in sorted(self.seen.done.items()))
        held = f"{self.spent_s:.1f} s of CPU, {self.faults} servers died, {done}"
        return self.report or f"ranges seed {self.seed}: {held}"


def swarm_of(seed: int) -> Swarm:
    """Return the mixture that a seed draws; in most of them clocks differ."""
    pick = seeded(seed, "ranges swarm").choice
    return Swarm(
        crash_s=pick((0, 4, 8)), down_s=pick((0.3, 0.7, 2)), leader_rate=pick((0.3, 0.6, 1)),
        power_cut_rate=pick((0, 0.5, 1)), in_operation_rate=pick((0, 0.3)),
        partition_s=pick((0, 6, 12)), partition_length_s=1.5, pause_s=pick((0, 6, 12)),
        jump_s=pick((0, 5, 15)), skew_ms=pick((0, 50, 500, 5000)),
        loss_rate=pick((0, 0.01, 0.05)), duplicate_rate=pick((0, 0.02, 0.1)),
        slow_rate=pick((0, 0.01)), slow_ms=pick((5, 200)), offset_ms=OFFSET_MS,
    )  # fmt: skip


async def _scenario(loop: SimLoop, found: Found, seconds: float) -> None:
    seed, seen = found.seed, found.seen
    cluster = SimCluster(loop, seed, tservers=TSERVERS, options=SETTINGS)
    core = await cluster.start()
    first = cluster.clients[0]
    parts = Partition(hash=[], range=Range(["k"], list(FIRST)))
    opened = await first.run(core.ddl.create_table, "t", SCHEMA, parts, 3, {})
    seen.spans += [Span(low, high, 0.0) for low, high in FIRST]
    clients: list[Client] = [Definer(cluster, seen, opened, "definer", DEFINE_US)]
    clients += [Writer(cluster, seen, opened, f"writer {n}", WRITE_US) for n in range(WRITERS)]
    clients += [Reader(cluster, seen, opened, f"reader {n}", READ_US) for n in range(READERS)]
    clients += [
        FeedFollower(cluster, seen, opened, f"follower {n}", FOLLOW_US, filtered=filtered)
        for n, filtered in enumerate([False, True])
    ]
    working = [client.process.run(client.run) for client in clients]
    names = [p.name for p in (*cluster.servers, *cluster.clients)]
    rng = seeded(seed, "nemesis")
    nemesis = Nemesis(cluster.network, cluster.servers, names, swarm_of(seed), rng, cluster.leader)
    nemesis.start()
    await loop.delay(seconds * 1e6)
    await nemesis.heal()
    for client in clients:
        client.stopped = True
    for work in working:
        await work

    async def history() -> list[Change]:
        table = await core.open_table("t")
        parts = await core.plan(table, ReadSpec(changes=True, since=1, net=False)).collect()
        return changes_of([row for some in parts for b in some for row in b.to_pylist()])

    Judge(await first.run(history)).check(seen)
    cluster.look()
    counts = loop.trace.counts
    found.faults, found.trace = counts["kill"] + counts["power_cut"], loop.trace


def run_ranges(seed: int, seconds: float) -> Found:
    """Run one seed. Raises the failure."""
    found, began = Found(seed), time.process_time()
    run(
        lambda loop: _scenario(loop, found, seconds),
        max_time_s=seconds + 300,
        max_events=40_000_000,
    )
    found.spent_s = time.process_time() - began
    return found


@quiet()
def judge(job: tuple[int, float]) -> Found:
    """Run one seed for some seconds; the report has a failure."""
    seed, seconds = job
    try:
        found = run_ranges(seed, seconds)
    except Exception as err:  # any error is reported with the command that repeats it
        where = "".join(traceback.format_exception(err, limit=-4))
        command = f"python -m tests.sim.runs.ranges_run --seed {seed} --seconds {seconds:g}"
        return Found(seed, f"{where}\nFAILED ranges seed {seed}\nrepeat it with: {REPEAT}{command}")
    found.trace = None  # the report is long
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 1 when a seed failed."""
    options = parser(__doc__, SECONDS)
    given = options.parse_args(arguments)
    ran, failed, done = 0, 0, Counter[str]()
    jobs = ((seed, given.seconds) for seed in seeds(given, lambda: ran * given.seconds))
    for found in judged(judge, jobs, given.workers):
        print(found.line(), flush=True)
        ran += 1
        failed += bool(found.report)
        done += found.seen.done
    summary = ", ".join(f"{what} {n}" for what, n in sorted(done.items()))
    print(f"done: {summary}\n{ran} seeds from {given.seed} on, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
