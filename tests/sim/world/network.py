"""The simulated network: links, delays, loss, duplication and partitions.

Partitions cut one direction of one pair of processes at a time. `rpc.py` and `transport.py` are the
two transports on top. Events that the network schedules belong to no process: a message already sent
arrives although its sender has crashed.
"""

import contextvars
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from nyala.env.rpc import Handlers
from nyala.raft.messages import PeerBatch
from tests.sim.world.loop import Incarnation, SimLoop
from tests.sim.world.trace import Trace

AFTER_PAUSE_US = 5_000
"""Mean delay between the deliveries of a resumed process's connections, in microseconds."""


@dataclass(slots=True)
class NetFaults:
    """Rates per message, 0 to 1, and delays in virtual microseconds.

    Attributes:
        delay_us: mean one-way delay.
        loss_rate: a message (or a unary request or answer) never arrives.
        duplicate_rate: it arrives twice.
        straggler_rate: it takes `straggler_us` on average, and so arrives after later ones.
        straggler_us: see `straggler_rate`.
    """

    delay_us: float = 300.0
    loss_rate: float = 0.0
    duplicate_rate: float = 0.0
    straggler_rate: float = 0.0
    straggler_us: float = 50_000.0


@dataclass(slots=True)
class Endpoint:
    """Listener at an address."""

    name: str
    incarnation: Incarnation
    handlers: Handlers
    receive: Callable[[PeerBatch], None] | None = None


class SimNetwork:
    """Addresses, links and faults of one simulation.

    Args:
        loop: virtual time.
        rng: draws delays and losses.
    """

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.faults = NetFaults()
        self.doubles_calls = True  # whether servers recognise a repeated request
        self.touched: dict[str, None] = {}  # names of senders and receivers since the last check
        self.called: dict[str, None] = {}  # names of callers since the last check
        self.on_send: Callable[[str, PeerBatch], None] | None = None
        self._endpoints: dict[str, Endpoint] = {}
        self._cut: set[tuple[str, str]] = set()
        self._nobody = contextvars.Context()
        self._on_death: dict[Incarnation, dict[object, Callable[[], None]]] = {}

    @property
    def trace(self) -> Trace:
        """Trace of the run's events."""
        return self.loop.trace

    def bind(self, address: str, endpoint: Endpoint) -> None:
        """Listen at an address, in place of a previous listener."""
        self._endpoints[address] = endpoint

    def endpoint(self, address: str) -> Endpoint | None:
        """Return the running listener of an address."""
        found = self._endpoints.get(address)
        return None if found is None or found.incarnation.dead else found

    def owner(self, address: str) -> str | None:
        """Return the process that an address belongs to, dead or alive."""
        found = self._endpoints.get(address)
        return None if found is None else found.name

    def cut(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Cut messages from any source to any target (this direction only)."""
        targets = list(targets)
        for source in sources:
            self._cut.update((source, target) for target in targets if target != source)
            self.trace.note("cut", f"{source} -> {' '.join(targets)}")

    def partition(self, left: Iterable[str], right: Iterable[str]) -> None:
        """Cut messages between two sets of processes, in both directions."""
        left, right = list(left), list(right)
        self.cut(left, right)
        self.cut(right, left)

    def heal(self) -> None:
        """Remove every cut."""
        if self._cut:
            self.trace.note("heal", "")
        self._cut.clear()

    def passes(self, source: str, target: str) -> bool:
        """Return whether messages from source to target are delivered."""
        return (source, target) not in self._cut

    def draw_delay_us(self) -> float:
        """Draw one message's delay."""
        faults = self.faults
        if faults.straggler_rate and self.rng.random() < faults.straggler_rate:
            self.trace.counts["straggler"] += 1
            return self.rng.expovariate(1 / faults.straggler_us)
        return 20 + self.rng.expovariate(1 / faults.delay_us)

    def copies(self) -> int:
        """Draw the number of arrivals of a message: 0, 1 or 2."""
        faults = self.faults
        if faults.loss_rate and self.rng.random() < faults.loss_rate:
            return 0
        if faults.duplicate_rate and self.rng.random() < faults.duplicate_rate:
            return 2
        return 1

    def after(self, delay_us: float, fn: Callable[..., None], *args: Any) -> Any:
        """Call `fn` later, for no process."""
        return self.loop.call_later(delay_us / 1e6, fn, *args, context=self._nobody)

    def into(
        self, incarnation: Incarnation, fn: Callable[..., object], *args: Any, connection: str = ""
    ) -> None:
        """Call `fn` as a process: never if it has ended, after its pause if it is paused."""
        if incarnation.paused:
            incarnation.arrivals.append((connection, fn, args))
        else:
            self.loop.call_soon(fn, *args, context=incarnation.context.copy())

    def resume(self, incarnation: Incarnation) -> None:
        """End a pause: connections are read in a random order."""
        arrivals, incarnation.arrivals = incarnation.arrivals, []
        incarnation.resume(self.loop)
        turns: dict[str, float] = {}
        for connection, fn, args in arrivals:
            turn = self.rng.expovariate(1 / AFTER_PAUSE_US)
            if connection:
                turn = turns[connection] = turns.get(connection, turn) + 1
            self.after(turn, lambda fn=fn, args=args: self.into(incarnation, fn, *args))

    def when_dead(self, incarnation: Incarnation, key: object, fn: Callable[[], None]) -> None:
        """Call `fn` when an incarnation ends, unless `forget` is called before."""
        self._on_death.setdefault(incarnation, {})[key] = fn

    def forget(self, incarnation: Incarnation, key: object) -> None:
        """Undo `when_dead`."""
        self._on_death.get(incarnation, {}).pop(key, None)

    def died(self, incarnation: Incarnation) -> None:
        """Notify the other ends of the connections of a process that has ended."""
        for fn in self._on_death.pop(incarnation, {}).values():
            self.after(self.draw_delay_us(), fn)
