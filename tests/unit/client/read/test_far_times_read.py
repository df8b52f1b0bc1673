"""Times beyond Python's years through a simulated cluster: defaults, keys and rows, by both ways of `get`."""

import pyarrow as pa

from nyala.client.alter import AlterSteps
from nyala.client.core import ClientOptions
from nyala.client.read.get_streams import MAX_KEYS
from nyala.common.partitioning.partition_spec import Partition, Range, resolve
from nyala.common.schema import from_arrow
from nyala.common.values.far_times import FarTime
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import SimLoop, run

US, UTC, DAY = pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32()
MOST, LEAST = (1 << 63) - 1, -(1 << 63)
FIRST = FarTime(LEAST, UTC)
SCHEMA = from_arrow(pa.schema([("k", UTC), ("t", US), ("d", DAY)]), ["k"])
ROW = {
    "k": FIRST,
    "t": FarTime(MOST, US),
    "d": FarTime((1 << 31) - 1, DAY),
    "u": FarTime(MOST, UTC),
}


def test_far_times_are_stored_defaulted_and_read_back():
    """`get` was Unavailable until its deadline, and the alteration INTERNAL."""

    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop, seed=11, masters=1)
        await cluster.start()
        core = cluster.client(ClientOptions(timeout_ms=30_000))

        async def scenario() -> None:
            bounds = Partition(range=Range(["k"], [(None, ROW["u"]), (ROW["u"], None)]))
            assert resolve(bounds, SCHEMA).count == 2
            table = await core.ddl.create_table("far", SCHEMA, bounds, 1, {})
            steps = AlterSteps(table)
            steps.set_default("t", ROW["t"])
            steps.set_default("d", ROW["d"])
            steps.add_column("u", UTC, default=ROW["u"])
            table = await core.ddl.alter_table(table, steps.steps)
            keys = pa.record_batch([pa.array([FIRST.scalar], UTC)], names=["k"])
            await core.session.write(
                table, pb.INSERT, keys, all_or_nothing=False, timeout_ms=30_000
            )
            assert await core.get(table, keys, None) == [ROW]
            many = pa.record_batch([pa.array([LEAST + n for n in range(MAX_KEYS + 1)], UTC)], ["k"])
            found = await core.get(table, many, None)
            assert found[0] == ROW
            assert not any(found[1:])

        await cluster.run(cluster.clients[-1], scenario)

    run(main, max_time_s=300)
