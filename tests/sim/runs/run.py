"""`./run sim`: seed after seed, a line each; a failure prints a transcript and the command that repeats it.

./run sim --seed 7                      one seed
./run sim --minutes 10                  as many seeds as fit, from a random first one
./run sim --minutes 10 --level host     only the replica engine over the log
./run sim --hours 10 --workers 2        until so many simulated hours under load are done
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator

from tests.sim.faults.plan import KINDS, MIXTURES
from tests.sim.runs.judge import LINES, SECONDS, Verdict, judge
from tests.sim.runs.levels import LEVELS, NOT_AT, level_of
from tests.sim.runs.pool import judged
from tests.sim.runs.seeds import parser, seeds

REAL = ("host", "cluster")
"""Levels whose time counts as simulated hours: those with the product's replica engine and log."""
ENOUGH_SEEDS = 60
"""Number of seeds in a batch, which must have had every kind of fault."""
Job = tuple[str, int, float, int, int]


class Batch:
    """The sum of many seeds."""

    def __init__(self) -> None:
        self.seeds: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.checks: Counter[str] = Counter()
        self.other: Counter[str] = Counter()
        self.valid_s: Counter[str] = Counter()
        self.all_s: Counter[str] = Counter()
        self.spent_s: Counter[str] = Counter()
        self.events = self.elections = self.failed = self.invalid = self.writes = 0

    def add(self, verdict: Verdict) -> None:
        """Add one seed."""
        level = verdict.level
        self.seeds[level] += 1
        self.faults += verdict.faults
        self.checks += verdict.checks
        self.other += verdict.other
        self.all_s[level] += verdict.time_s  # type: ignore[assignment]  # seconds, not counts
        self.spent_s[level] += verdict.spent_s  # type: ignore[assignment]
        self.events += verdict.events
        self.elections += verdict.elections
        self.failed += bool(verdict.report)
        self.invalid += bool(verdict.invalid)
        self.writes += verdict.writes
        if not verdict.report and not verdict.invalid:
            self.valid_s[level] += verdict.time_s  # type: ignore[assignment]

    @property
    def hours(self) -> float:
        """Simulated hours under load, at the levels that count."""
        return sum(self.valid_s[level] for level in REAL) / 3600

    def missing(self) -> list[str]:
        """Kinds of fault that should have occurred and have not."""
        if self.seeds.total() < ENOUGH_SEEDS:
            return []
        return [
            k for k in KINDS if not self.faults[k] and any(k not in NOT_AT[v] for v in self.seeds)
        ]

    def lines(self) -> Iterator[str]:
        """Return the readable report."""
        yield "faults: " + ", ".join(f"{kind} {self.faults[kind]}" for kind in KINDS)
        yield "checked: " + ", ".join(f"{what} {n}" for what, n in sorted(self.checks.items()))
        yield "besides: " + ", ".join(f"{what} {n}" for what, n in sorted(self.other.items()))
        for level in LEVELS:
            if spent := self.spent_s[level]:
                yield (
                    f"{level}: {self.seeds[level]} seeds, {self.all_s[level] / 3600:.2f} simulated hours, "
                    f"{self.valid_s[level] / 3600:.2f} of them under load, "
                    f"{self.all_s[level] / spent:.0f} simulated seconds a second"
                )
        spent = sum(self.spent_s.values())
        yield (
            f"{self.seeds.total()} seeds, {self.events / max(spent, 1e-9):,.0f} events a second, "
            f"{self.elections} elections, {self.writes} writes acknowledged, {self.invalid} runs INVALID, "
            f"{self.hours:.2f} simulated hours under load ({' and '.join(REAL)}), {self.failed} failed"
        )


def main(arguments: list[str] | None = None, *, every_kind: bool = True) -> int:
    """Run the command line and return its exit status.

    Args:
        arguments: options; None: those of the process.
        every_kind: 1 also if a kind of fault occurred in none of many seeds; False: only if a seed failed.
    """
    options = parser(__doc__, SECONDS)
    options.prog = "./run sim"
    options.set_defaults(seed=random.randrange(1_000_000))
    options.add_argument("--level", choices=[*LEVELS], help="default: by the seed, all in turn")
    options.add_argument("--lines", type=int, default=LINES, help="of a failure's transcript")
    options.add_argument(
        "--mixture",
        type=int,
        choices=MIXTURES,
        default=MIXTURES[-1],
        help="version of what is drawn",
    )
    options.add_argument("--quiet", action="store_true", help="print failures and the sum only")
    given = options.parse_args(arguments)
    batch = Batch()
    for verdict in _verdicts(given, batch):
        batch.add(verdict)
        if verdict.report or not given.quiet:
            print(verdict.line(), flush=True)
    for line in batch.lines():
        print(line)
    print(f"seeds {given.seed} to {given.seed + batch.seeds.total() - 1}, {given.seconds:g} s each")
    missing = batch.missing()
    if missing:
        heading = "FAILED: never happened" if every_kind else "occurred in none of the seeds"
        print(f"{heading}: {', '.join(missing)}")
    return 1 if batch.failed or (missing and every_kind) else 0


def _verdicts(given: argparse.Namespace, batch: Batch) -> Iterator[Verdict]:
    """Run seeds in order until the time or the simulated hours are reached."""
    jobs = (
        (given.level or level_of(seed), seed, given.seconds, given.lines, given.mixture)
        for seed in seeds(given, lambda: 3600 * batch.hours)
    )
    return judged(_judge, jobs, given.workers)


def _judge(job: Job) -> Verdict:
    return judge(*job)


if __name__ == "__main__":
    sys.exit(main())
