"""Streams into and out of a table on the whole cluster in virtual time, while leaders die or are stopped."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore, ClientOptions
from nyala.client.read.read_spec import ReadSpec
from nyala.client.read.side_by_side import SideBySide, sharing
from nyala.client.write.writer import BatchLimits
from nyala.common.errors import Unavailable
from nyala.wire.proto import nyala_pb2 as pb
from tests.enough import enough
from tests.salt import generator
from tests.sim.systems.cluster import SimCluster
from tests.sim.systems.table_client import rows_of
from tests.sim.world.loop import SimLoop, run

BATCHES, ROWS, TABLETS = 20, 60, 3
OPTIONS = ClientOptions(
    timeout_ms=60_000, limits=BatchLimits(50, ahead_bytes=20_000), scan_batch_rows=20
)


class Faults:
    """Leaders of tablets that die or are stopped at random batches, and are back some batches later."""

    def __init__(self, cluster: SimCluster, seed: int) -> None:
        self._cluster = cluster
        self._rng = generator(seed)
        self._back: list[Any] = []
        self.count = 0

    def at_batch(self) -> None:
        """Begin or end a fault, perhaps."""
        drawn = self._rng.random()
        if self._back and drawn < 0.3:
            self._back.pop()()
        elif not self._back and drawn > 0.8 and (leader := self._cluster.leader()) is not None:
            if self._rng.random() < 0.5:
                leader.kill(power_cut=True)
                self._back.append(leader.start)
            else:
                leader.pause()
                self._back.append(leader.resume)
            self.count += 1

    def end(self) -> None:
        """End the present fault."""
        while self._back:
            self._back.pop()()


async def write(core: ClientCore, table: OpenTable, faults: Faults) -> Any:
    """Insert all rows as a stream."""
    upload = await core.session.begin(
        table, pb.INSERT, all_or_nothing=False, timeout_ms=OPTIONS.timeout_ms
    )
    for number in range(BATCHES):
        faults.at_batch()
        keys = list(range(number * ROWS, (number + 1) * ROWS))
        await upload.take(rows_of(keys, keys))
        await core.env.tasks.sleep_ms(200)
    faults.end()
    return await upload.finish()


async def keys_of(batches: AsyncIterator[Any], core: ClientCore, faults: Faults) -> list[int]:
    """Return the keys of a stream whose caller takes some time for each batch."""
    found: list[int] = []
    async for batch in batches:
        faults.at_batch()
        found += batch.column("k").to_pylist()
        await core.env.tasks.sleep_ms(200)
    faults.end()
    return found


async def side_by_side(core: ClientCore, table: OpenTable, found: list[int]) -> AsyncIterator[Any]:
    """Yield the batches of a read without order; add their keys to `found`."""
    tokens = await core.reader.tokens(table, ReadSpec(), OPTIONS.timeout_ms)
    async for _, batch in SideBySide(core.env, core.reader, tokens).run():
        if batch is not None:
            found += batch.column("k").to_pylist()
            yield batch


async def read(core: ClientCore, table: OpenTable, faults: Faults) -> tuple[list[int], bool]:
    """Return the keys of a read without order, and whether a tablet broke under it."""
    found: list[int] = []
    try:
        await keys_of(side_by_side(core, table, found), core, faults)
    except Unavailable:
        faults.end()
        return found, True
    return found, False


@pytest.mark.parametrize("seed", range(2))
def test_streams_lose_and_double_no_row_while_leaders_die_or_are_stopped(seed):
    async def main(loop: SimLoop) -> int:
        cluster = SimCluster(loop, seed=seed)
        await cluster.start()
        core = cluster.client(OPTIONS)
        client = cluster.clients[-1]
        table = await cluster.create_table(core, tablets=TABLETS)
        faults = Faults(cluster, seed)
        every = list(range(BATCHES * ROWS))
        written: Any = await cluster.run(client, write, core, table, faults)
        assert (written.rows, written.errors) == (len(every), [])
        for _ in range(2):
            outcome: Any = await cluster.run(client, read, core, table, faults)
            keys, broken = outcome
            assert len(set(keys)) == len(keys)
            assert broken or sorted(keys) == every
        spec = ReadSpec(ordered=True)
        tokens: Any = await cluster.run(client, core.reader.tokens, table, spec, 60_000)
        found: list[int] = []
        for token in sharing(tokens, 1 << 20):
            batches = core.reader.run(token)
            of_tablet: Any = await cluster.run(client, keys_of, batches, core, faults)
            assert of_tablet == sorted(set(of_tablet))
            found += of_tablet
        assert sorted(found) == every
        return faults.count

    faults = run(main, max_time_s=1_200)
    enough(faults > 2, f"{faults} faults")
