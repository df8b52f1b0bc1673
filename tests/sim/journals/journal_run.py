"""Journals under faults: one seed, or many until so many simulated hours are counted.

./run soak journals                                        three simulated hours, or as many as fit
python -m tests.sim.journals.journal_run --seed 7          one seed; with --lines N a transcript of a failure
"""

import logging
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field

from tests.salt import REPEAT
from tests.sim.checkers.transcript import Recorder
from tests.sim.journals.cluster_run import run_journal_cluster
from tests.sim.journals.host_run import run_host
from tests.sim.journals.outcome import JournalOutcome
from tests.sim.runs.judge import swarm_of
from tests.sim.runs.pool import judged
from tests.sim.runs.seeds import parser, seeds

LEVELS = ("host", "moving", "cluster")
"""Levels, in turn by seed: the replica engine, the same with replicas that move, the whole cluster."""
SECONDS = 40.0
Job = tuple[str, int, float, int]


@dataclass(slots=True)
class Found:
    """Result of one seed.

    Attributes:
        report: of a failure; empty: none.
        counted_s: simulated seconds that count.
        spent_s: seconds of CPU.
        done: operations of the clients, by kind.
        faults: faults by kind.
        checks: checks by invariant.
    """

    level: str
    seed: int
    seconds: float
    report: str = ""
    counted_s: float = 0.0
    spent_s: float = 0.0
    done: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        """Return one readable line."""
        thin = "" if self.counted_s else ", does not count: too few steps"
        return self.report or (
            f"journals {self.level} seed {self.seed}: {self.seconds:g} s in {self.spent_s:.1f} s of CPU, "
            f"{_counts(self.done)}, {self.faults.total()} faults{thin}"
        )


def level_of(seed: int) -> str:
    """Return the level of a seed for which none is named."""
    return LEVELS[seed % len(LEVELS)]


def run_seed(
    level: str, seed: int, seconds: float, recorder: Recorder | None = None
) -> JournalOutcome:
    """Run one seed; raise a violation.

    Args:
        level: of `LEVELS`.
        seed: of everything drawn.
        seconds: virtual time under faults.
        recorder: receives every event.
    """
    swarm = swarm_of(seed, 3)
    if level == "cluster":
        return run_journal_cluster(seed, swarm, seconds, recorder)
    return run_host(seed, swarm, seconds, moving=level == "moving", recorder=recorder)


def judge(job: Job) -> Found:
    """Run one seed; the report has a failure, with a transcript of `lines` lines."""
    level, seed, seconds, lines = job
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # the product logs what is meant to happen here
    found, began = Found(level, seed, seconds), time.process_time()
    try:
        outcome = run_seed(level, seed, seconds)
        found.done, found.faults = outcome.done, outcome.faults
        found.checks, found.counted_s = outcome.checks, outcome.counted_s
    except Exception as err:  # any error is reported with the command that repeats it
        where = "".join(traceback.format_exception(err, limit=-4))
        command = (
            f"{REPEAT}python -m tests.sim.journals.journal_run --level {level} --seed {seed} "
            f"--seconds {seconds:g} --lines 200"
        )
        events = _transcript(job, str(err)) if lines else ""
        found.report = (
            f"{events}{where}\nFAILED journals {level} seed {seed}\nrepeat it with: {command}"
        )
    finally:
        logging.disable(before)
    found.spent_s = time.process_time() - began
    return found


def _transcript(job: Job, failure: str) -> str:
    level, seed, seconds, lines = job
    recorder = Recorder()
    try:
        run_seed(level, seed, seconds, recorder)
    except Exception as err:  # the same one, unless the run is not deterministic
        again = "" if str(err) == failure else f"run again it failed otherwise: {err}\n"
        return recorder.show(lines, failure) + "\n" + again
    return "it did not fail when it was run again: the run is not deterministic\n"


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{what} {n}" for what, n in sorted(counter.items()))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 1 when a seed failed."""
    options = parser(__doc__, SECONDS)
    options.add_argument("--level", choices=LEVELS, help="default: by the seed, all in turn")
    options.add_argument("--lines", type=int, default=0, help="of a failure's transcript")
    given = options.parse_args(arguments)
    total, counted = Counter[str](), Counter[str]()
    done, faults, checks = Counter[str](), Counter[str](), Counter[str]()
    jobs = (
        (given.level or level_of(seed), seed, given.seconds, given.lines)
        for seed in seeds(given, counted.total)
    )
    for found in judged(judge, jobs, given.workers):
        print(found.line(), flush=True)
        total["seeds"] += 1
        total["failed"] += bool(found.report)
        total["cpu_s"] += round(found.spent_s)
        counted[found.level] += round(found.counted_s)
        done, faults, checks = done + found.done, faults + found.faults, checks + found.checks
    print(f"done: {_counts(done)}\nfaults: {_counts(faults)}\nchecked: {_counts(checks)}")
    hours = ", ".join(f"{level} {s / 3600:.2f}" for level, s in sorted(counted.items()))
    print(
        f"{total['seeds']} seeds from {given.seed} on, {counted.total() / 3600:.2f} simulated hours counted "
        f"({hours}), {total['cpu_s']} s of CPU, {total['failed']} failed"
    )
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
