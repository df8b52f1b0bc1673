"""A whole simulated cluster for definitions of tables: real masters, tablet servers and a client."""

import pyarrow as pa

from nyala.client.alter import AlterSteps
from nyala.client.read.read_spec import ReadSpec
from nyala.common.ids import SYS_CATALOG
from nyala.common.partitioning.partition_spec import Hash, Partition, Range
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SCHEMA, SimCluster
from tests.sim.systems.table_client import rows_of
from tests.sim.world.loop import run

TIMEOUT_MS = 20_000


class Ddl:
    """A cluster and one client of it."""

    def __init__(self, cluster, core):
        self.cluster, self.core = cluster, core

    async def ask(self, fn, *args, **more):
        async def work():
            return await fn(*args, **more)

        return await self.cluster.run(self.cluster.clients[0], work)

    async def create(self, name="t", tablets=1):
        return await self.ask(self.core.ddl.create_table, name, SCHEMA, hashed(tablets), 3, {})

    async def create_ranges(self, name="t", bounds=((0, 10), (10, 20)), buckets=1):
        spec = Partition(hash=[], range=Range(["k"], list(bounds)))
        assert buckets == 1
        return await self.ask(self.core.ddl.create_table, name, SCHEMA, spec, 3, {})

    async def open(self, name="t"):
        return await self.ask(self.core.open_table, name)

    async def alter(self, table, *steps):
        """Alter; each step is (method of AlterSteps, its arguments...)."""
        made = AlterSteps(table)
        for method, *arguments in steps:
            getattr(made, method)(*arguments)
        return await self.ask(self.core.ddl.alter_table, table, made.steps)

    async def write(self, table, batch, op=pb.UPSERT):
        async def write():
            return await self.core.session.write(
                table, op, batch, all_or_nothing=False, timeout_ms=TIMEOUT_MS
            )

        return (await self.ask(write)).errors

    async def put(self, table, *keys):
        return await self.write(table, rows_of(list(keys), [k * 10 for k in keys]))

    async def scan(self, table, **spec):
        rows = rows_in(await self.ask(self.core.plan(table, ReadSpec(**spec)).collect))
        return sorted(rows, key=lambda r: next(iter(r.values())))

    async def keys(self, table):
        return [next(iter(r.values())) for r in await self.scan(table)]

    async def count(self, table):
        counting = self.core.plan(table, ReadSpec()).collect
        return sum(r["_count"] for r in rows_in(await self.ask(counting, count_only=True)))

    async def feed(self, table, since, until=0, **more):
        """Return the changes: (operation, key, time) in order of time and key."""
        spec = ReadSpec(changes=True, since=since, at=until, **more)
        rows = rows_in(await self.ask(self.core.plan(table, spec).collect))
        found = sorted((r["_timestamp"], r["k"], r["_op"]) for r in rows)
        return [(op, key, at) for at, key, op in found]

    async def now(self, table):
        """A time above everything acknowledged in a table."""
        plan = self.core.plan(table, ReadSpec())
        await self.ask(plan.verified)
        return plan.at

    async def get(self, table, *keys):
        return await self.ask(self.core.get, table, rows_of(list(keys)), None)

    def leading(self):
        """The leader master's catalog, or None."""
        process = self.cluster.leader_of(SYS_CATALOG)
        leading = None if process is None else getattr(process.server, "leading", None)
        term = None if leading is None else leading.current()
        return None if term is None else term.catalog

    def kill_leader(self):
        process = self.cluster.leader_of(SYS_CATALOG)
        process.kill()
        return process

    def groups(self):
        """The tablets that have a living replica somewhere."""
        tservers = [p.name for p in self.cluster.tservers]
        return sorted({g for p, g, _ in self.cluster.replicas() if p.name in tservers})


def rows_in(parts):
    return [r for some in parts for batch in some for r in batch.to_pylist()]


def hashed(tablets):
    return Partition(hash=[Hash(["k"], tablets)]) if tablets > 1 else None


def with_cluster(work, seed=5, **more):
    async def main(loop):
        cluster = SimCluster(loop, seed, **more)
        core = await cluster.start()
        await work(Ddl(cluster, core))
        cluster.look()

    run(main, max_time_s=400)


def batch_of(**columns):
    return pa.RecordBatch.from_pydict(columns)
