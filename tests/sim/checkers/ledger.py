"""Batches of new rows into a table of several tablets, and scans that must be repeatable.

Acknowledged rows exist exactly once at the end, refused ones never, those with unknown outcome at most
once; a snapshot reads the same each time.
"""

import random

from nyala.common.errors import NyalaError
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.runs.workload import Failed, Unknown
from tests.sim.systems.table_client import TableClient, rows_of
from tests.sim.world.loop import SimLoop

BATCH_ROWS = 20


class Ledger:
    """One client that writes and reads a ledger.

    Args:
        loop: virtual time.
        client: on the table.
        rng: source of the choices.
    """

    def __init__(self, loop: SimLoop, client: TableClient, rng: random.Random) -> None:
        self._loop = loop
        self._client = client
        self._rng = rng
        self._next = 0
        self.stopped = False
        self.acknowledged: set[int] = set()
        self.unknown: set[int] = set()
        self._scans: list[tuple[int, list[tuple[int, int]]]] = []

    async def run(self) -> None:
        """Run until `stopped`."""
        while not self.stopped:
            await self._loop.delay(self._rng.expovariate(1 / 150_000))
            if self._rng.random() < 0.1:
                await self._scan()
            else:
                await self._write()

    async def _write(self) -> None:
        keys = list(range(self._next, self._next + BATCH_ROWS))
        self._next += BATCH_ROWS
        try:
            errors = await self._client.write(pb.INSERT, rows_of(keys, keys))
        except Unknown:
            self.unknown.update(keys)
        except Failed:
            self.unknown.update(keys)  # another tablet's part of the batch may have taken effect
        else:
            assert not errors, f"new rows were refused: {errors[:3]}"
            self.acknowledged.update(keys)

    async def _scan(self) -> None:
        before = set(self.acknowledged)
        try:
            at = await self._client.core.now()
            rows = await self._rows(at)
        except NyalaError:
            return
        self._check(rows, before)
        self._scans.append((at, rows))

    async def _rows(self, at: int) -> list[tuple[int, int]]:
        return [(r["k"], r["v"]) for r in await self._client.scan(at)]

    def _check(self, rows: list[tuple[int, int]], expected: set[int]) -> None:
        keys = [k for k, _ in rows]
        seen = set(keys)
        assert len(seen) == len(keys), "a row exists twice"
        assert all(k == v for k, v in rows), "a row has the value of another one"
        missing = sorted(expected - seen)
        assert not missing, (
            f"{len(missing)} acknowledged rows are missing, the first is {missing[0]}"
        )

    async def finish(self) -> None:
        """Read everything again; all faults must be healed."""
        rows = await self._rows(0)
        self._check(rows, self.acknowledged)
        extra = {k for k, _ in rows} - self.acknowledged - self.unknown
        assert not extra, f"rows that were never written: {sorted(extra)[:5]}"
        for at, before in self._scans:
            assert await self._rows(at) == before, f"the snapshot at {at} has changed"

    @property
    def scans(self) -> int:
        """Snapshots read so far."""
        return len(self._scans)
