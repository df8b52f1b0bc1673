"""Wall clocks that are far wrong for a while: of one server at a time, in either direction.

The judge: no server's hybrid clock comes further ahead than a right clock may be off and `clock_max_ahead_ms`
allow: the wrong one is outvoted or refused. It comes back by itself when it is right again (`soundness.py`).
"""

import random

from nyala.common.hybrid_time import to_micros
from nyala.common.options import Options
from tests.sim.cluster import SimCluster
from tests.sim.faults import SKEW_MAX_MS
from tests.sim.loop import WALL_START_US
from tests.sim.replicas import hosts_of

BOUND_US = (Options().clock_max_ahead_ms + SKEW_MAX_MS) * 1000
"""So far ahead of true time a hybrid clock may come: what a server takes whose own clock is ahead."""
FAR_S = (30.0, 3600.0, 365 * 86_400.0, 24 * 365 * 86_400.0)


class FarClocks:
    """Does it, and looks at all hybrid clocks.

    Args:
        cluster: whose clocks.
        rng: whose clock, when, by how much.
        length_s: mean time until it is set right.
    """

    def __init__(self, cluster: SimCluster, rng: random.Random, length_s: float) -> None:
        self._cluster = cluster
        self._rng = rng
        self._length_s = length_s

    async def fault(self) -> None:
        """Set one clock far wrong, and right again."""
        rng, loop = self._rng, self._cluster.loop
        victim = rng.choice(self._cluster.servers)
        by_us = round(rng.choice((-1, 1)) * rng.choice(FAR_S) * 1e6)
        loop.trace.note("far_clock", f"{victim.name} {by_us}")
        victim.clock.far_us = by_us
        try:
            await loop.delay(rng.expovariate(1 / self._length_s) * 1e6)
        finally:
            victim.clock.far_us = 0
            loop.trace.note("right_clock", victim.name)

    async def watch(self) -> None:
        """Look at all hybrid clocks, again and again."""
        while True:
            self.look()
            await self._cluster.loop.delay(100_000)

    def look(self) -> None:
        """Look at all hybrid clocks.

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
