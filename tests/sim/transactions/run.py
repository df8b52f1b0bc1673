"""Transfers between accounts under faults: one seed, or many until so many simulated hours are counted.

./run soak bank                                          five simulated hours, or as many as fit
python -m tests.sim.transactions.run --seed 7            one seed
"""

import contextlib
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from unittest import mock

from nyala.tablet.write import apply_transactions
from tests.salt import REPEAT
from tests.sim.faults.plan import Swarm
from tests.sim.runs.pool import judged
from tests.sim.runs.seeds import parser, seeds
from tests.sim.transactions.bank import NO_CHANGES, run_bank
from tests.sim.transactions.changes import ChangeRates
from tests.sim.world.loop import seeded
from tests.sim.world.swallowed import quiet

SECONDS = 30.0
COMMITS_PER_S = 1.0
"""Committed transactions a simulated second from which on a seed counts."""
Job = tuple[int, float]


@dataclass(slots=True)
class Found:
    """Result of one seed.

    Attributes:
        report: of a failure; empty: none.
        counted_s: simulated seconds that count.
        spent_s: seconds of CPU.
        commits, reads: committed transactions and reads whose balances were compared.
        done: other operations of the clients and changes of the table, by kind.
    """

    seed: int
    seconds: float
    report: str = ""
    counted_s: float = 0.0
    spent_s: float = 0.0
    commits: int = 0
    reads: int = 0
    done: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        """Return one readable line."""
        thin = "" if self.counted_s else ", does not count: too few commits"
        done = ", ".join(f"{what} {n}" for what, n in sorted(self.done.items()))
        return self.report or (
            f"bank seed {self.seed}: {self.seconds:g} s in {self.spent_s:.1f} s of CPU, "
            f"{self.commits} commits, {self.reads} reads, {done}{thin}"
        )


def swarm_of(seed: int) -> Swarm:
    """Return the mixture of faults that a seed draws."""
    pick = seeded(seed, "swarm of the bank").choice
    return Swarm(
        crash_s=pick((0, 2, 6)), down_s=pick((0.4, 1.5)), leader_rate=pick((0.3, 0.6, 1)),
        power_cut_rate=pick((0, 0.5, 1)), partition_s=pick((0, 3, 8)), partition_length_s=0.7,
        pause_s=pick((0, 4)), pause_length_s=0.5, skew_ms=pick((0, 50, 300)),
        loss_rate=pick((0, 0.01, 0.03)), duplicate_rate=pick((0, 0.03)),
        straggler_rate=pick((0, 0.02)), slow_rate=pick((0, 0.02)), transfer_s=pick((0, 1, 4)),
    )  # fmt: skip


def rates_of(seed: int) -> ChangeRates:
    """Return how often a seed moves replicas and alters the table; half of the seeds do neither."""
    if seed % 2:
        return NO_CHANGES
    pick = seeded(seed, "changes of the bank").choice
    return ChangeRates(move_s=pick((2, 5)), alter_s=pick((2, 5)))


@quiet()
def judge(job: Job) -> Found:
    """Run one seed for some simulated seconds; the report has a failure.

    In a third of the seeds each staged batch is applied as a step of its own.
    """
    seed, seconds = job
    found, began = Found(seed, seconds), time.process_time()
    small = mock.patch.multiple(apply_transactions, FIRST_BYTES=0, PIECE_BYTES=0)
    try:
        with small if seed % 3 == 0 else contextlib.nullcontext():
            history = run_bank(seed, swarm_of(seed), seconds, rates_of(seed))
        found.commits, found.reads = len(history.commits), len(history.reads)
        found.done = Counter(history.counts)
        if found.commits >= COMMITS_PER_S * seconds:
            found.counted_s = seconds
    except Exception as err:  # any error is reported with the command that repeats it
        where = "".join(traceback.format_exception(err, limit=-4))
        command = (
            f"{REPEAT}python -m tests.sim.transactions.run --seed {seed} --seconds {seconds:g}"
        )
        found.report = f"{where}\nFAILED bank seed {seed}\nrepeat it with: {command}"
    found.spent_s = time.process_time() - began
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 1 when a seed failed."""
    options = parser(__doc__, SECONDS)
    given = options.parse_args(arguments)
    ran, failed, counted, spent, commits, reads = 0, 0, 0.0, 0.0, 0, 0
    jobs = ((seed, given.seconds) for seed in seeds(given, lambda: counted))
    for found in judged(judge, jobs, given.workers):
        print(found.line(), flush=True)
        ran += 1
        failed += bool(found.report)
        counted += found.counted_s
        spent += found.spent_s
        commits += found.commits
        reads += found.reads
    print(
        f"{ran} seeds from {given.seed} on, {counted / 3600:.2f} simulated hours counted, "
        f"{commits} commits, {reads} reads, {spent:.0f} s of CPU, {failed} failed"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
