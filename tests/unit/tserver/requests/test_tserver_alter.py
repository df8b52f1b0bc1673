"""A table altered under running clients: the operation in a group, and clients with older schemas."""

import asyncio
from dataclasses import replace

import pyarrow as pa
import pytest

from nyala.client.read.read_spec import ReadSpec
from nyala.client.write.put_streams import PutStreams
from nyala.common.alteration import AddColumn, DropColumn, RenameColumn, alter
from nyala.common.errors import InvalidArgument, NotLeader, SchemaMismatch, Unavailable
from nyala.common.expressions.predicate import Compare
from nyala.common.expressions.predicate import CompareOp as Sign
from nyala.common.expressions.where import parse
from nyala.common.hybrid_time import from_micros
from nyala.wire import convert, flight
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SimCluster
from tests.sim.systems.table_client import rows_of
from tests.sim.world.loop import run

TIMEOUT_MS = 10_000


class Altered:
    """A table of (k, v), one tablet on three servers, and a client that knows its first schema."""

    def __init__(self, cluster, core, table):
        self.cluster, self.core, self.table = cluster, core, table
        self.tablet_id = next(g for p, g, _ in cluster.replicas() if p in cluster.tservers)
        self.schema = table.schema

    def schemas(self):
        """Return the state at each server; None where it is not up (yet)."""
        for process in self.cluster.tservers:
            try:
                yield process.server.tablets.get(self.tablet_id).tablet.info.schema
            except (AttributeError, Unavailable):
                yield None

    async def send(self, schema, server=None, **options):
        leader = server or self.cluster.leader_of(self.tablet_id)
        order = pb.AlterTabletRequest(
            tablet_id=self.tablet_id,
            table_name="t",
            schema=convert.schema_to_proto(schema),
            options=options,
        )
        return await leader.run(leader.server.tablets.alter, order, TIMEOUT_MS)

    async def alter(self, *steps):
        self.schema = alter(self.schema, steps)
        assert await self.send(self.schema) == self.schema.version

    async def everywhere(self):
        await self.cluster.until(
            lambda: all(s == self.schema for s in self.schemas()), "the schema"
        )

    async def ask(self, fn, *args):
        return await self.cluster.run(self.cluster.clients[-1], fn, *args)

    async def write(self, batch, table=None, op=pb.UPSERT):
        async def write():
            return await self.core.session.write(
                table or self.table, op, batch, all_or_nothing=False, timeout_ms=TIMEOUT_MS
            )

        return (await self.ask(write)).errors

    async def scan(self, table=None, **spec):
        async def scan():
            reader = self.core.reader
            tokens = await reader.tokens(table or self.table, ReadSpec(**spec), TIMEOUT_MS)
            return await reader.collect_all(tokens)

        rows = [r for some in await self.ask(scan) for b in some for r in b.to_pylist()]
        return sorted(rows, key=lambda r: next(iter(r.values())))

    def reopened(self):
        """The table as opened by a new client."""
        return replace(self.table, schema=self.schema)


def with_table(work, seed=5):
    async def main(loop):
        cluster = SimCluster(loop, seed, masters=1)
        core = await cluster.start()
        await work(Altered(cluster, core, await cluster.create_table(core)))
        cluster.look()

    run(main, max_time_s=300)


def test_altered_schema_reaches_every_replica_and_survives_restart():
    async def work(t):
        await t.write(rows_of([1, 2], [10, 20]))
        await t.alter(AddColumn("n", pa.int32(), default=7), RenameColumn("v", "w"))
        await t.everywhere()
        assert await t.send(t.schema) == 1, "a repetition has no effect"
        followers = [p for p in t.cluster.tservers if p is not t.cluster.leader_of(t.tablet_id)]
        followers[0].kill()
        await t.alter(DropColumn("w"))
        for server in t.cluster.tservers:
            if server is not followers[0]:
                server.kill()
            server.start()
        await t.everywhere()
        assert await t.scan(t.reopened()) == [{"k": 1, "n": 7}, {"k": 2, "n": 7}]

    with_table(work)


def test_incompatible_alteration_is_refused_and_follower_alters_nothing():
    async def work(t):
        await t.alter(AddColumn("n", pa.int32()))
        wrong = replace(t.schema, version=5, next_column_id=1)
        with pytest.raises(InvalidArgument, match="next column id 1"):
            await t.send(wrong)
        later = alter(t.schema, [DropColumn("n")])
        with pytest.raises(InvalidArgument, match="compression"):
            await t.send(later, compression="much")
        await t.everywhere()
        leader = t.cluster.leader_of(t.tablet_id)
        follower = next(p for p in t.cluster.tservers if p is not leader)
        with pytest.raises(NotLeader):
            await t.send(later, follower)
        assert await t.send(t.table.schema) == 1, "an older version changes nothing"
        assert await t.send(t.schema, follower) == 1, "a known version changes nothing"

    with_table(work)


@pytest.mark.row("A14")
def test_client_of_older_schema_continues_with_remaining_columns():
    async def work(t):
        await t.write(rows_of([1], [10]))
        await t.alter(AddColumn("n", pa.int32(), default=7))
        assert not await t.write(rows_of([2], [20]))
        assert await t.scan() == [{"k": 1, "v": 10}, {"k": 2, "v": 20}]
        assert await t.scan(t.reopened()) == [
            {"k": 1, "v": 10, "n": 7}, {"k": 2, "v": 20, "n": 7},
        ]  # fmt: skip
        await t.alter(DropColumn("v"), AddColumn("v", pa.int64()))
        assert not await t.write(rows_of([3]), op=pb.INSERT)
        with pytest.raises(SchemaMismatch, match=r"ids \[1\] were dropped since"):
            await t.write(rows_of([3], [30]))
        with pytest.raises(SchemaMismatch, match="planned for schema version 0"):
            await t.scan()
        where = Compare(t.table.schema.column("v").id, Sign.GT, pa.scalar(0))
        with pytest.raises(SchemaMismatch, match="planned for schema version 0"):
            await t.scan(columns=("k",), where=where)
        assert await t.scan(columns=("k",)) == [{"k": k} for k in (1, 2, 3)]
        rows = await t.scan(t.reopened())
        assert [r["v"] for r in rows] == [None] * 3, (
            "an added column does not show values of a dropped one with its name"
        )

    with_table(work)


@pytest.mark.parametrize(
    "spec", [{}, {"ordered": True}, {"columns": ("v", "k")}, {"changes": True}]
)
def test_client_with_older_schema_reads_renamed_columns_by_old_names(spec):
    async def work(t):
        await t.write(rows_of([1, 2], [10, 20]))
        before = await t.scan(**spec)
        await t.alter(RenameColumn("v", "w"), RenameColumn("k", "v"), AddColumn("k", pa.int8()))
        assert await t.scan(**spec) == before
        assert await t.ask(t.core.get, t.table, rows_of([2, 3]), None) == [{"k": 2, "v": 20}, None]
        assert await t.ask(t.core.get, t.reopened(), keys_named("v", [2]), ("w", "k")) == [
            {"w": 20, "k": None}
        ]
        await t.alter(DropColumn("w"))
        where = Compare(t.table.schema.column("k").id, Sign.GE, pa.scalar(2))
        assert await t.scan(count_only=True, where=where) == [{"_count": 1}]

    with_table(work)


def keys_named(name, values):
    return pa.record_batch([pa.array(values, pa.int64())], [name])


@pytest.mark.parametrize(
    "wrong",
    [{"column_names": ["x"]}, {"all_columns": True}, {"column_ids": [7], "column_names": ["x"]}],
)
def test_names_that_do_not_fit_the_columns_are_refused(wrong):
    async def work(t):
        async def read():
            reader = t.core.reader
            [token] = await reader.tokens(t.table, ReadSpec(), TIMEOUT_MS)
            token.MergeFrom(pb.ScanToken(**wrong))
            return await reader.collect_all([token])

        with pytest.raises(InvalidArgument, match=r"columns with|column id 7"):
            await t.ask(read)

    with_table(work)


def test_requests_of_newer_schema_wait_until_tablet_has_it():
    async def work(t):
        first = t.schema
        t.schema = alter(first, [AddColumn("n", pa.int32(), default=7), DropColumn("v")])
        batch = pa.record_batch([pa.array([1]), pa.array([2], pa.int32())], ["k", "n"])
        writing = asyncio.ensure_future(t.write(batch, t.reopened()))
        scanning = asyncio.ensure_future(t.scan(t.reopened()))
        await t.cluster.loop.delay(500_000)
        assert not writing.done()
        assert not scanning.done()
        assert t.table.schema == first
        assert await t.send(t.schema) == 1
        assert not await writing
        assert await scanning in ([], [{"k": 1, "n": 2}])
        assert await t.scan(t.reopened()) == [{"k": 1, "n": 2}]

    with_table(work)


def test_retry_of_write_that_was_applied_before_its_range_was_dropped_returns_its_result():
    async def work(t):
        batch = flight.batch_parts(rows_of([1], [10]))

        async def put(sequence):
            """Send the same rows under a sequence number, as a retry sends them."""

            async def send():
                streams = PutStreams(t.core.env)
                address = t.cluster.leader_of(t.tablet_id).address
                header = pb.WriteHeader(
                    tablet_id=t.tablet_id, op=pb.UPSERT, column_ids=[0, 1],
                    client_id=b"c" * 16, sequence=sequence, first_outstanding=1,
                )  # fmt: skip
                try:
                    return await streams.get(address, t.schema.arrow).put(header, batch, TIMEOUT_MS)
                finally:
                    streams.close()

            return await t.ask(send)

        first = await put(1)
        assert (first.rows, first.duplicate, first.error.code) == (1, False, "")
        retired = replace(t.schema, version=t.schema.version + 1)
        order = pb.AlterTabletRequest(
            tablet_id=t.tablet_id, table_name="t", schema=convert.schema_to_proto(retired),
            ranges_version=retired.version, retire=True,
        )  # fmt: skip
        leader = t.cluster.leader_of(t.tablet_id)
        assert await leader.run(leader.server.tablets.alter, order, TIMEOUT_MS) == retired.version
        for _ in range(2):
            again = await put(1)
            assert (again.timestamp, again.rows, again.duplicate) == (first.timestamp, 1, True)
            fresh = await put(2)
            assert (fresh.rows, fresh.error.code) == (0, "RANGES_CHANGED")
        t.cluster.leader_of(t.tablet_id).kill()
        await t.cluster.until(lambda: t.cluster.leader_of(t.tablet_id), "another leader")
        again = await put(1)
        assert (again.timestamp, again.rows, again.duplicate) == (first.timestamp, 1, True)

    with_table(work)


def test_token_of_a_time_before_a_drop_is_read_and_strange_definitions_are_refused():
    async def work(t):
        await t.write(rows_of([1], [10]))
        spec = ReadSpec(schema=t.schema)
        some = ReadSpec(columns=("k",), where=parse("v < 20", t.schema))
        [token] = await t.ask(lambda: t.core.reader.tokens(t.table, spec, TIMEOUT_MS))
        [condition] = await t.ask(lambda: t.core.reader.tokens(t.table, some, TIMEOUT_MS))
        await t.alter(DropColumn("v"), AddColumn("n", pa.int32()))

        async def rows(token):
            found = await t.ask(lambda: t.core.reader.collect(token))
            return [r for b in found for r in b.to_pylist()]

        assert await rows(token) == [{"k": 1, "v": 10}]
        assert await rows(condition) == [{"k": 1}]
        token.past_columns.add(id=1, name="v", type="string", nullable=True)
        assert await rows(token) == [{"k": 1, "v": 10}], "the tablet's own definition counts"
        for strange, error in (
            (pb.Column(id=1, type="no such type"), InvalidArgument),
            (pb.Column(id=7, name="new", type="int64", nullable=True), SchemaMismatch),
        ):
            bad = pb.ScanToken()
            bad.CopyFrom(token)
            del bad.past_columns[:]
            bad.past_columns.append(strange)
            bad.column_ids[1] = strange.id
            with pytest.raises(error):
                await rows(bad)
        token.at = 0
        with pytest.raises(SchemaMismatch, match="column id 1"):
            await rows(token)

    with_table(work)


def test_alteration_is_stamped_above_the_time_that_the_masters_have_chosen():
    async def work(t):
        leader = t.cluster.leader_of(t.tablet_id)
        tablet = leader.server.tablets.get(t.tablet_id).tablet
        above = from_micros(leader.clock.wall_us() + 2_000_000)  # the leader waits for it
        order = pb.AlterTabletRequest(
            tablet_id=t.tablet_id,
            table_name="t",
            schema=convert.schema_to_proto(alter(t.schema, [DropColumn("v")])),
            above=above,
        )
        await leader.run(leader.server.tablets.alter, order, TIMEOUT_MS)
        [dropped] = tablet.info.dropped
        assert dropped.stamp > above

    with_table(work)
