"""Result of one simulated run."""

from collections import Counter
from dataclasses import dataclass, field

from tests.sim.faults.plan import count
from tests.sim.runs.workload import History
from tests.sim.world.trace import Trace

LEAST_CLIENTS = 5
LEAST_WRITES_PER_S = 10
LEAST_FAULTS_PER_MINUTE = 1


@dataclass(slots=True)
class Outcome:
    """Result of one run.

    Attributes:
        trace: its events, counted and hashed.
        history: operations of the clients.
        events: turns of the loop.
        time_s: virtual seconds.
        terms: leaders by term.
        clients: number of concurrent clients.
        checks: number of checks of each invariant.
    """

    trace: Trace
    history: History
    events: int
    time_s: float
    terms: int
    clients: int
    checks: Counter[str] = field(default_factory=Counter)

    @property
    def faults(self) -> int:
        """Number of checks of all kinds."""
        return sum(count(self.trace).values())

    @property
    def invalid(self) -> str:
        """Reason why its time does not count as time under load; empty if it counts."""
        thin = []
        if self.clients < LEAST_CLIENTS:
            thin.append(f"{self.clients} clients")
        if self.history.writes < LEAST_WRITES_PER_S * self.time_s:
            thin.append(f"{self.history.writes / self.time_s:.1f} writes/s")
        if self.faults * 60 < self.time_s * LEAST_FAULTS_PER_MINUTE:
            thin.append(f"{self.faults} faults in {self.time_s:.0f} s")
        return ", ".join(thin)
