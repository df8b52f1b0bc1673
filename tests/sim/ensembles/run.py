"""Ensembles under faults: one seed, or many until so many simulated hours are counted.

./run soak ensembles                                     three simulated hours, or as many as fit
python -m tests.sim.ensembles.run --seed 7               one seed; with --lines N a transcript of a failure
"""

import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field

from tests.salt import REPEAT
from tests.sim.checkers.transcript import Recorder
from tests.sim.ensembles.plan import draw_faults
from tests.sim.ensembles.scenario import EnsembleOutcome, run_ensemble
from tests.sim.runs.pool import judged
from tests.sim.runs.seeds import parser, seeds
from tests.sim.world.swallowed import quiet

SECONDS = 60.0
Job = tuple[int, float, int]


@dataclass(slots=True)
class Found:
    """Result of one seed.

    Attributes:
        report: of a failure; empty: none.
        counted_s: simulated seconds that count.
        spent_s: seconds of CPU.
        digest: of all events.
        done: answers and commits by kind.
        faults: faults by kind.
        checks: checks by kind.
    """

    seed: int
    seconds: float
    report: str = ""
    counted_s: float = 0.0
    spent_s: float = 0.0
    digest: str = ""
    acknowledged: int = 0
    done: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        """Return one readable line."""
        thin = "" if self.counted_s else ", does not count: too few changes"
        return self.report or (
            f"ensembles seed {self.seed}: {self.digest[:12]} {self.seconds:g} s in {self.spent_s:.1f} s of "
            f"CPU, {self.acknowledged} changes, {self.checks['take-overs']} leaders, "
            f"{self.faults.total()} faults{thin}"
        )


def run_seed(seed: int, seconds: float, recorder: Recorder | None = None) -> EnsembleOutcome:
    """Run one seed with the faults that it draws; raise a violation."""
    return run_ensemble(seed, draw_faults(seed), seconds, recorder)


def judge(job: Job) -> Found:
    """Run one seed; the report has a failure, with a transcript of `lines` lines."""
    seed, seconds, lines = job
    found, began = Found(seed, seconds), time.process_time()
    with quiet():
        try:
            outcome = run_seed(seed, seconds)
            found.done, found.faults, found.checks = outcome.done, outcome.faults, outcome.checks
            found.counted_s, found.acknowledged = outcome.counted_s, outcome.acknowledged
            found.digest = outcome.trace.digest()
        except Exception as err:  # any error is reported with the command that repeats it
            where = "".join(traceback.format_exception(err, limit=-4))
            events = _transcript(job, str(err)) if lines else ""
            found.report = (
                f"{events}{where}\nFAILED ensembles seed {seed}\nrepeat it with: {REPEAT}python -m "
                f"tests.sim.ensembles.run --seed {seed} --seconds {seconds:g} --lines 200"
            )
    found.spent_s = time.process_time() - began
    return found


def _transcript(job: Job, failure: str) -> str:
    seed, seconds, lines = job
    recorder = Recorder()
    try:
        run_seed(seed, seconds, recorder)
    except Exception as err:  # the same one, unless the run is not deterministic
        again = "" if str(err) == failure else f"run again it failed otherwise: {err}\n"
        return recorder.show(lines, failure) + "\n" + again
    return "it did not fail when it was run again: the run is not deterministic\n"


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{what} {n}" for what, n in sorted(counter.items()))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 1 when a seed failed."""
    options = parser(__doc__, SECONDS)
    options.add_argument("--lines", type=int, default=0, help="of a failure's transcript")
    options.add_argument("--quiet", action="store_true", help="print only failures and the sums")
    given = options.parse_args(arguments)
    total, done = Counter[str](), Counter[str]()
    faults, checks = Counter[str](), Counter[str]()
    jobs = ((n, given.seconds, given.lines) for n in seeds(given, lambda: total["counted_s"]))
    for found in judged(judge, jobs, given.workers):
        if found.report or not given.quiet:
            print(found.line(), flush=True)
        total["seeds"] += 1
        total["failed"] += bool(found.report)
        total["cpu_s"] += round(found.spent_s)
        total["counted_s"] += round(found.counted_s)
        done, faults, checks = done + found.done, faults + found.faults, checks + found.checks
    print(f"done: {_counts(done)}\nfaults: {_counts(faults)}\nchecked: {_counts(checks)}")
    print(
        f"{total['seeds']} seeds from {given.seed} on, {total['counted_s'] / 3600:.2f} simulated hours "
        f"counted, {total['cpu_s']} s of CPU, {total['failed']} failed"
    )
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
