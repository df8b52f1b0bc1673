"""Result of one run of journals."""

from collections import Counter
from dataclasses import dataclass, field

from tests.sim.faults.plan import count
from tests.sim.journals.client import JournalHistory
from tests.sim.world.trace import Trace

LEAST_STEPS_PER_S = 5
"""Acknowledged steps in a second under faults, of a run whose time counts."""


@dataclass(slots=True)
class JournalOutcome:
    """Result of one run.

    Attributes:
        trace: its events, counted and hashed.
        histories: of the journals.
        checks: number of checks of each invariant.
        seconds: virtual time under faults.
        others: number of other operations, such as definitions.
    """

    trace: Trace
    histories: list[JournalHistory]
    checks: Counter[str]
    seconds: float
    others: Counter[str] = field(default_factory=Counter)

    @property
    def done(self) -> Counter[str]:
        """Number of operations by kind."""
        return sum((h.done for h in self.histories), Counter()) + self.others

    @property
    def faults(self) -> Counter[str]:
        """Number of faults by kind."""
        return count(self.trace)

    @property
    def counted_s(self) -> float:
        """Simulated seconds that count: under faults, with enough acknowledged steps."""
        enough = self.done["step"] >= LEAST_STEPS_PER_S * self.seconds and self.faults
        return self.seconds if enough else 0.0
