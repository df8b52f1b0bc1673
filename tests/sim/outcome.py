"""What one simulated run gave."""

from dataclasses import dataclass

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
