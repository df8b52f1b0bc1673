"""A client that reads everything as of a time, from leaders and followers, and later reads it again.

A snapshot reads the same each time, under any leader.
"""

import random

from tests.sim.runs.workload import Failed
from tests.sim.systems.kv import HISTORY_US, KvClient
from tests.sim.world.loop import SimLoop

Rows = list[list[int]]


class Snapshots:
    """Takes snapshots until `stopped`.

    Args:
        loop: virtual time.
        client: that reads.
        rng: source of the choices.
        pause_us: mean time between two reads.
    """

    def __init__(
        self, loop: SimLoop, client: KvClient, rng: random.Random, pause_us: float = 400_000
    ) -> None:
        self._loop = loop
        self._client = client
        self._rng = rng
        self._pause_us = pause_us
        self._taken: list[tuple[float, int, Rows]] = []
        self.stopped = False
        self.repeated = 0
        self.stale = 0

    async def run(self) -> None:
        """Read until `stopped`."""
        while not self.stopped:
            await self._loop.delay(self._rng.expovariate(1 / self._pause_us))
            choice = self._rng.random()
            try:
                if choice < 0.3:
                    await self._take(None)
                elif choice < 0.6:
                    await self._stale()
                elif self._taken:
                    await self._again(*self._rng.choice(self._taken[-20:]))
            except Failed:
                continue

    async def _take(self, at: int | None) -> None:
        found, rows = await self._client.snapshot(at)
        self._taken.append((self._loop.time(), found, rows))

    async def _stale(self) -> None:
        found, rows = await self._client.stale(0)
        self.stale += 1
        self._taken.append((self._loop.time(), found, rows))
        await self._again(*self._taken[-1])

    async def _again(self, when: float, at: int, rows: Rows) -> None:
        if (self._loop.time() - when) * 1e6 > HISTORY_US / 2:
            return
        found, again = await self._client.snapshot(at)
        assert found == at, f"asked for {at}, answered as of {found}"
        assert again == rows, (
            f"the snapshot at {at}, first read at {when:.6f} s, has changed: {_difference(rows, again)}"
        )
        self.repeated += 1

    async def finish(self) -> None:
        """Read all snapshots that are not too old again, after healing."""
        for one in self._taken[-5:]:
            await self._again(*one)


def _difference(before: Rows, after: Rows) -> str:
    missing = [row for row in before if row not in after]
    new = [row for row in after if row not in before]
    return f"{missing[:5]} became {new[:5]}"
