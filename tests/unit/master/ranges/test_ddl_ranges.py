"""Ranges added and dropped in a whole simulated cluster, and tables dropped and recalled."""

import pyarrow as pa
import pytest

from nyala.client.read.read_spec import ReadSpec
from nyala.common.errors import AlreadyPresent, InvalidArgument, NotFound
from nyala.common.expressions.where import parse
from nyala.common.partitioning.partition_spec import Hash, Partition, Range
from nyala.common.schema import from_arrow
from tests.unit.master.support.ddl_cluster import batch_of, with_cluster


@pytest.mark.row("A4")
def test_ranges_are_added_and_dropped_online_with_active_clients():
    async def work(ddl):
        old = await ddl.create_ranges()
        assert await ddl.put(old, 5, 15) == []
        errors = await ddl.put(old, 25)
        assert [code for _, code, _ in errors] == ["no_partition"]
        other = await ddl.open()
        new = await ddl.alter(old, ("add_range", 20, 30))
        assert len(new.tablets) == 3
        assert await ddl.put(new, 25) == []
        assert len(other.tablets) == 2
        assert await ddl.put(other, 26, 6) == [], (
            "a client that does not know the range looks it up"
        )
        assert len(other.tablets) == 3
        assert await ddl.keys(other) == [5, 6, 15, 25, 26]
        assert [r["v"] for r in await ddl.get(old, 5, 25, 15)] == [50, 250, 150], (
            "a look-up finds the row too"
        )
        with pytest.raises(InvalidArgument, match="10 <= k < 20, which the table has"):
            await ddl.alter(new, ("add_range", 19, 40))
        with pytest.raises(NotFound, match="a range is dropped whole"):
            await ddl.alter(new, ("drop_range", 0, 5))
        last = await ddl.alter(new, ("drop_range", 0, 10))
        assert await ddl.keys(last) == [15, 25, 26]
        assert [c for _, c, _ in await ddl.put(last, 7)] == ["no_partition"]
        assert [c for _, c, _ in await ddl.put(other, 8)] == ["no_partition"]
        again = await ddl.alter(last, ("add_range", 0, 10))
        assert await ddl.put(again, 8) == []
        assert await ddl.keys(again) == [8, 15, 25, 26], "a new range is empty"

    with_cluster(work)


@pytest.mark.row("A4")
def test_range_added_to_table_with_two_hash_levels_has_a_tablet_per_combination():
    columns = from_arrow(
        pa.schema([("a", pa.int64()), ("b", pa.string()), ("n", pa.int64())]), ["a", "b", "n"]
    )
    spec = Partition(hash=[Hash(["a"], 2), Hash(["b"], 3)], range=Range(["n"], [(0, 10)]))

    def rows(n):
        pairs = [(a, b) for a in range(8) for b in "uvwxyz"]
        return batch_of(
            a=pa.array([a for a, _ in pairs]),
            b=pa.array([b for _, b in pairs]),
            n=pa.array([n] * 48),
        )

    async def work(ddl):
        old = await ddl.ask(ddl.core.ddl.create_table, "t", columns, spec, 1, {})
        assert len(old.tablets) == 6
        assert await ddl.write(old, rows(3)) == []
        assert {code for _, code, _ in await ddl.write(old, rows(20))} == {"no_partition"}
        new = await ddl.alter(old, ("add_range", 20, 30))
        assert len(new.tablets) == 12
        assert await ddl.write(old, rows(20)) == []
        found = await ddl.ask(ddl.core.plan(new, ReadSpec()).collect)
        per_tablet = [sum(batch.num_rows for batch in some) for some in found]
        assert sum(per_tablet) == 96
        assert sum(count > 0 for count in per_tablet) == 12, (
            "each combination has a tablet of its own"
        )
        where = parse("a = 1 and b = 'u' and n >= 20", new.schema)
        one = await ddl.ask(ddl.core.plan(new, ReadSpec(where=where)).make_tokens)
        assert len(one.tokens) == 1
        last = await ddl.alter(new, ("drop_range", 0, 10))
        assert len(last.tablets) == 6
        assert {row["n"] for row in await ddl.scan(last)} == {20}

    with_cluster(work)


@pytest.mark.row("S0.43")
def test_dropped_table_is_recallable_until_retention_expires():
    async def work(ddl):
        cluster = ddl.cluster
        old = await ddl.create(tablets=2)
        await ddl.put(old, *range(6))
        replicas = ddl.groups()
        await ddl.ask(ddl.core.ddl.drop_table, "t", 3600)
        with pytest.raises(NotFound):
            await ddl.open("t")
        leader = ddl.kill_leader()
        await cluster.loop.delay(5_000_000)
        leader.start()
        (found,) = await ddl.ask(ddl.core.tables, dropped=True)
        assert (found.id, found.name) == (old.id, "t")
        assert ddl.groups() == replicas, "no replica is deleted"
        other = await ddl.create("t")
        with pytest.raises(AlreadyPresent, match=f"id {other.id}"):
            await ddl.ask(ddl.core.ddl.recall_table, old.id)
        back = await ddl.ask(ddl.core.ddl.recall_table, old.id, "u")
        assert (back.id, back.name, await ddl.keys(back)) == (old.id, "u", list(range(6)))
        await ddl.put(back, 6)
        with pytest.raises(NotFound, match="is there: there is nothing to recall"):
            await ddl.ask(ddl.core.ddl.recall_table, old.id)
        await ddl.ask(ddl.core.ddl.drop_table, "u", 3)
        await cluster.until(
            lambda: not set(replicas) & set(ddl.groups()),
            "the reserve of the dropped table has ended",
        )
        with pytest.raises(NotFound, match="deleted permanently"):
            await ddl.ask(ddl.core.ddl.recall_table, old.id)
        assert await ddl.keys(other) == []

    with_cluster(work)
