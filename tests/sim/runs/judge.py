"""Runs one seed; a failed seed is run again for the transcript.

A `Verdict` is plain data: it may be sent between processes.
"""

import time
import traceback
from collections import Counter
from dataclasses import dataclass, field

from tests.salt import REPEAT
from tests.sim.checkers.outcome import Outcome
from tests.sim.checkers.transcript import Recorder
from tests.sim.faults.plan import MIXTURES, Swarm, count, draw, further, loaded
from tests.sim.runs.levels import LEVELS
from tests.sim.runs.workload import NotLinearizable
from tests.sim.world.loop import seeded
from tests.sim.world.swallowed import quiet

SECONDS = 20.0
LINES = 120


@dataclass(slots=True)
class Verdict:
    """Outcome of one seed.

    Attributes:
        report: readable report of a failure; empty if none.
        invalid: reason why its time does not count as time under load; empty: none.
        other: further counts, by name.
    """

    level: str
    seed: int
    seconds: float
    mixture: int = MIXTURES[-1]
    report: str = ""
    invalid: str = ""
    digest: str = ""
    time_s: float = 0.0
    spent_s: float = 0.0
    events: int = 0
    acknowledged: int = 0
    writes: int = 0
    failed: int = 0
    unknown: int = 0
    elections: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    other: Counter[str] = field(default_factory=Counter)

    @property
    def command(self) -> str:
        """The command that repeats it."""
        return f"./run sim --level {self.level} --seed {self.seed} --seconds {self.seconds:g}" + (
            "" if self.mixture == MIXTURES[-1] else f" --mixture {self.mixture}"
        )

    def line(self) -> str:
        """Return one line for a person."""
        if self.report:
            return self.report
        return (
            f"{self.level} seed {self.seed}: {self.digest[:12]} {self.time_s:.0f} s, {self.events} events "
            f"({self.events / max(self.spent_s, 1e-9):,.0f}/s), {self.writes} writes acknowledged "
            f"({self.writes / self.time_s:.0f}/s), {self.failed} failed, {self.unknown} unknown, "
            f"{self.elections} elections, {self.faults.total()} faults"
            f"{', INVALID: ' + self.invalid if self.invalid else ''}"
        )


def swarm_of(seed: int, mixture: int = 1) -> Swarm:
    """Return the mixture of a seed by a version."""
    drawn = draw(seeded(seed, "swarm"))
    if mixture >= 2:
        drawn = further(drawn, seeded(seed, "swarm", "further"))
    if mixture >= 3:
        drawn = loaded(drawn, seeded(seed, "swarm", "loaded"))
    return drawn


def judge(
    level: str, seed: int, seconds: float = SECONDS, lines: int = LINES, mixture: int = MIXTURES[-1]
) -> Verdict:
    """Run one seed at one level; the verdict's report has a failure.

    Args:
        level: of `levels.py`.
        seed: of everything drawn.
        seconds: virtual time under faults.
        lines: of a failure's transcript.
        mixture: version of the mixture.
    """
    verdict = Verdict(level, seed, seconds, mixture)
    swarm = swarm_of(seed, mixture)
    began = time.perf_counter()
    with quiet():
        try:
            _take(verdict, LEVELS[level](seed, swarm, seconds, None))
        except Exception as err:  # any error is reported with the command that repeats it
            verdict.report = _report(verdict, swarm, err, lines)
    verdict.spent_s = time.perf_counter() - began
    return verdict


def _take(verdict: Verdict, outcome: Outcome) -> None:
    history = outcome.history
    verdict.invalid, verdict.digest = outcome.invalid, outcome.trace.digest()
    verdict.time_s, verdict.events = outcome.time_s, outcome.events
    verdict.acknowledged, verdict.writes = history.acknowledged, history.writes
    verdict.failed, verdict.unknown = history.failed, history.unknown
    verdict.elections = outcome.terms
    verdict.faults = count(outcome.trace)
    verdict.checks = outcome.checks
    for kind in ("change_taken", "change_refused", "replica_failed", "start_refused"):
        verdict.other[kind] = outcome.trace.counts[kind]


def _report(verdict: Verdict, swarm: Swarm, err: Exception, lines: int) -> str:
    """Run it once more with a recorder, and return the whole report."""
    recorder = Recorder(err.at_s + 0.001 if isinstance(err, NotLinearizable) else float("inf"))
    again = "it did not fail when it was run again: the run is not deterministic"
    try:
        LEVELS[verdict.level](verdict.seed, swarm, verdict.seconds, recorder)
    except Exception as second:  # the same one, unless the run is not deterministic
        same = str(second) == str(err)
        again = "" if same else f"run again it failed otherwise: {second}"
    where = "".join(traceback.format_exception(err, limit=-4)[:-1])
    parts = [
        f"{'-' * 100}",
        recorder.show(lines, str(err)),
        f"{'-' * 100}\n{where}",
        f"FAILED {verdict.level} seed {verdict.seed}: {type(err).__name__}: {err}",
        f"mixture: {swarm.text()}",
        again,
        f"repeat it with: {REPEAT}{verdict.command}",
    ]
    return "\n".join(part for part in parts if part)
