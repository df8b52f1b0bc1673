"""Wall clocks with a large offset for some time, of one server at a time, in either direction.

Checks: no server's hybrid clock is further ahead than the error of a correct clock and `clock_max_ahead_ms`
allow: the wrong one is corrected by the majority or refused. Its server is active again afterwards
(`soundness.py`).

A clock is wrong while its server runs, and correct when it starts: a server that starts with a wrong clock
without contact to others follows it (docs/operate/clocks.md). Starts with wrong
clocks beside reachable servers are in `test_wrong_clocks.py`.
"""

import random

from nyala.common.hybrid_time import to_micros
from nyala.common.options import Options
from tests.sim.faults.plan import SKEW_MAX_MS
from tests.sim.systems.cluster import SimCluster
from tests.sim.systems.replicas import hosts_of
from tests.sim.world.loop import WALL_START_US

BOUND_US = (Options().clock_max_ahead_ms + SKEW_MAX_MS) * 1000
"""Largest allowed lead of a hybrid clock over true time in microseconds."""
APART_S = 60.0
"""Smallest difference of the errors of two clocks."""
LOOK_US = 5_000
"""Seconds of an offset; shorter than the time for which a server is down."""
FAR_S = (30.0, 3600.0, 365 * 86_400.0, 24 * 365 * 86_400.0)


class FarClocks:
    """Injects the offsets, and checks all hybrid clocks.

    Args:
        cluster: of the clocks.
        rng: source of the choices.
        length_s: mean time until the clock is corrected.
    """

    def __init__(self, cluster: SimCluster, rng: random.Random, length_s: float) -> None:
        self._cluster = cluster
        self._rng = rng
        self._length_s = length_s
        self._count = 0

    async def fault(self) -> None:
        """Set one clock far wrong, and correct it again."""
        rng, loop = self._rng, self._cluster.loop
        victim = rng.choice(
            [s for s in self._cluster.servers if s.alive] or self._cluster.servers[:1]
        )
        # never twice the same: offsets of a wrong clock are kept for a minute, and two
        # equal offsets are a majority of three
        self._count += 1
        by_us = round(rng.choice((-1, 1)) * (rng.choice(FAR_S) + APART_S * self._count) * 1e6)
        loop.trace.note("far_clock", f"{victim.name} {by_us}")
        right_us = loop.now_us() + rng.expovariate(1 / self._length_s) * 1e6
        victim.clock.far_us = by_us
        try:
            while victim.alive and loop.now_us() < right_us:
                await loop.delay(LOOK_US)
        finally:
            victim.clock.far_us = 0
            loop.trace.note("right_clock", victim.name)

    async def watch(self) -> None:
        """Check all hybrid clocks repeatedly."""
        while True:
            self.look()
            await self._cluster.loop.delay(100_000)

    def look(self) -> None:
        """Check all hybrid clocks.

        Raises:
            AssertionError: one is too far ahead.
        """
        now_us = WALL_START_US + self._cluster.loop.now_us()
        for server in self._cluster.servers:
            for host in hosts_of(server):
                ahead_us = to_micros(host.time) - now_us
                assert ahead_us <= BOUND_US, (
                    f"the hybrid clock of {server.name} is {ahead_us / 1e6:.1f} s ahead of true time"
                )
