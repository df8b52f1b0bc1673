"""What one simulated run gave."""

from dataclasses import dataclass

from tests.sim.faults import count
from tests.sim.trace import Trace
from tests.sim.workload import History


@dataclass(slots=True)
class Outcome:
    """What one run gave.

    Attributes:
        trace: its events, counted and hashed.
        history: what the clients did.
        events: turns of the loop.
        time_s: virtual seconds.
        terms: leaders seen.
    """

    trace: Trace
    history: History
    events: int
    time_s: float
    terms: int

    @property
    def counts(self) -> bool:
        """Whether its time counts as under load: ten acknowledged a second, a fault a minute."""
        faults = sum(count(self.trace).values())
        return self.history.acknowledged >= 10 * self.time_s and faults * 60 >= self.time_s
