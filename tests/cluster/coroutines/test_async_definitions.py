"""Alterations, holds, and changes by condition on an event loop."""

import asyncio

import pyarrow as pa
import pytest

import nyala
from nyala.client.modify import modification
from nyala.common.errors import InvalidArgument, NotFound
from tests.cluster.support.loops import on_loop, one_turn

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
RANGED = nyala.Partition(range=nyala.Range(["k"], [(0, 100)]))


def test_table_is_altered_on_a_loop(cluster):
    async def work(client):
        table = await client.create_table("aio_altered", SCHEMA, ["k"], RANGED)
        await table.insert([{"k": 1, "v": "a"}])
        alter = await table.alter()
        alter.rename_column("v", "w").add_column("n", pa.int32(), default=7)
        await alter.add_range(100, 200).set_owner("ops").rename("aio_renamed").commit()
        assert table.schema.names == ["k", "w", "n"]
        await table.upsert([{"k": 150, "w": "b"}])
        assert await table.get({"k": 150}) == {"k": 150, "w": "b", "n": 7}
        await (await table.alter()).drop_range(100, 200).drop_column("n").commit()
        again = await client.open_table("aio_renamed")
        assert await again.count() == 1
        assert again.schema.names == ["k", "w"]
        with pytest.raises(NotFound, match="no column 'x'"):
            (await table.alter()).drop_column("x")
        with pytest.raises(InvalidArgument):
            await (await table.alter()).commit()

    on_loop(cluster, work)


def test_cancelled_alteration_says_that_it_may_have_happened(cluster):
    async def work(client):
        table = await client.create_table("aio_half_altered", SCHEMA, ["k"])
        altering = asyncio.ensure_future((await table.alter()).set_comment("new").commit())
        for _ in range(3):
            await one_turn()
        altering.cancel()
        ended = asyncio.CancelledError()
        try:
            await altering
        except asyncio.CancelledError as err:
            ended = err
        assert "may have taken effect" in "".join(getattr(ended, "__notes__", []))
        assert await table.count() == 0

    on_loop(cluster, work)


def test_time_that_is_held_on_a_loop_stays_readable_until_its_release(cluster):
    async def work(client):
        table = await client.create_table("aio_held", SCHEMA, ["k"])
        await table.insert([{"k": 1, "v": "a"}])
        async with await table.hold(ttl=60) as hold:
            assert 0 < hold.left_s <= 60
            assert repr(hold).startswith("<nyala.aio.AsyncHold at")
            await table.upsert([{"k": 1, "v": "b"}])
            assert (await table.scan(at=hold.at).to_arrow()).to_pylist() == [{"k": 1, "v": "a"}]
        assert hold.left_s == 0
        await hold.release()
        with pytest.raises(InvalidArgument, match="ttl"):
            await table.hold(ttl=0)

    on_loop(cluster, work)


def test_rows_are_changed_by_condition_on_a_loop(cluster):
    async def work(client):
        table = await client.create_table("aio_changed", SCHEMA, ["k"])
        await table.insert([{"k": k, "v": "a"} for k in range(20)])
        done = await table.update_where("k >= 15", {"v": nyala.expr("v || '!'")})
        assert (done.matched, done.changed) == (5, 5)
        assert (await table.delete_where("v = 'a!'")).changed == 5
        async with client.transaction() as txn:
            assert await table.delete_where("k < 5", txn=txn) is None
            assert await table.count() == 15
        assert await table.count() == 10
        with pytest.raises(InvalidArgument, match="condition as text"):
            await table.delete_where(5)

    on_loop(cluster, work)


def test_cancelled_change_by_condition_has_where_to_continue(cluster, monkeypatch):
    monkeypatch.setattr(modification, "CHUNK_ROWS", 2)

    async def work(client):
        table = await client.create_table("aio_part_changed", SCHEMA, ["k"])
        await table.insert([{"k": k, "v": "a"} for k in range(10)])
        deleted: list[int] = []
        deleting = asyncio.ensure_future(
            table.delete_where("true", progress=lambda rows: deleted.append(rows))
        )
        while not deleted:
            await one_turn()
        deleting.cancel()
        partly = None
        try:
            await deleting
        except asyncio.CancelledError as err:
            partly = err.__cause__
        assert isinstance(partly, nyala.PartlyChanged)
        assert 2 <= partly.result.changed < 10
        rest = await table.delete_where("true", at=partly.result.at, after=partly.result.after)
        assert rest.matched == 10 - partly.result.changed
        assert await table.count() == 0

    on_loop(cluster, work)
