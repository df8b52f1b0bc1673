"""No Python calls per row of a batch in client, server, log, apply and scan, all in this process.

Counted over the whole cluster (three masters, three tablet servers, one client, lanes inline), with the
limits raised so that 100,000 rows are sent as one batch.
"""

import functools

import numpy as np
import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore, ClientOptions
from nyala.client.read.read_spec import ReadSpec
from nyala.client.write.writer import BatchLimits
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import SimLoop, run
from tests.unit.common.support.calls import Counter

OPTIONS = ClientOptions(
    timeout_ms=30_000,
    limits=BatchLimits(100_000, 16 << 20),
    scan_batch_bytes=16 << 20,
    scan_batch_rows=100_000,
)


def rows(first: int, count: int) -> pa.RecordBatch:
    keys = np.random.default_rng(count).permutation(count) + first
    return pa.record_batch([pa.array(keys), pa.array(keys * 3)], names=["k", "v"])


async def write(core: ClientCore, table: OpenTable, batch: pa.RecordBatch) -> int:
    done = await core.session.write(
        table, pb.UPSERT, batch, all_or_nothing=False, timeout_ms=30_000
    )
    return done.rows


async def read(core: ClientCore, table: OpenTable) -> int:
    tokens = await core.reader.tokens(table, ReadSpec(), 30_000)
    return sum(b.num_rows for part in await core.reader.collect_all(tokens) for b in part)


def calls_of(count: int) -> tuple[int, int]:
    """Return the number of calls for writing and reading the rows of a table of this size."""

    async def main(loop: SimLoop) -> tuple[int, int]:
        cluster = SimCluster(loop, seed=3)
        await cluster.start()
        core = cluster.client(OPTIONS)
        client = cluster.clients[-1]
        table = await cluster.create_table(core)
        do = functools.partial(cluster.run, client)
        for _ in range(
            2
        ):  # warm-up: kernels, streams, the first allocation of a rowset of this size
            assert await do(write, core, table, rows(0, count)) == count
            assert await do(read, core, table) == count
        with Counter() as writing:
            await do(write, core, table, rows(0, count))
            await loop.delay(300_000)  # the followers have applied it too
        with Counter() as reading:
            assert await do(read, core, table) == count
        return writing.calls, reading.calls

    return run(main, max_time_s=120)


def test_call_count_less_than_doubles_for_hundredfold_rows():
    few, many = calls_of(1_000), calls_of(100_000)
    assert many[0] < 2 * few[0], f"write: {few[0]} and {many[0]} calls"
    assert many[1] < 2 * few[1], f"scan: {few[1]} and {many[1]} calls"
    assert many[0] - few[0] < 50_000, "fewer calls than one for every second row"
