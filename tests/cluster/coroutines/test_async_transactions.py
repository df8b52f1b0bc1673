"""Transactions on an event loop: their end, errors as they begin, and cancellation at any turn."""

import asyncio
from typing import Any

import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import InvalidArgument
from tests.cluster.support.loops import on_loop, one_turn

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
HASHED = nyala.Partition(hash=[nyala.Hash(["k"], 3)])


async def kept_alive() -> int:
    """Return the number of transactions that are kept alive, after their tasks could end."""
    for _ in range(5):
        await one_turn()
    return sum("keep a transaction alive" in t.get_name() for t in asyncio.all_tasks())


def test_transaction_on_a_loop_commits_at_the_end_of_its_block_or_not_at_all(cluster):
    async def work(client):
        table = await client.create_table("aio_txn", SCHEMA, ["k"], HASHED)
        async with client.transaction() as txn:
            await table.upsert([{"k": k, "v": "a"} for k in range(4)], txn=txn)
            assert await table.count() == 0
        assert txn.commit_time
        assert await table.count() == 4
        with pytest.raises(InvalidArgument, match="is committed"):
            await table.upsert([{"k": 9, "v": "a"}], txn=txn)

        async def failing():
            async with client.transaction() as other:
                await table.delete([{"k": 1}], txn=other)
                raise ZeroDivisionError

        async def late():
            async with asyncio.timeout(0.2), client.transaction() as other:
                await table.delete([{"k": 2}], txn=other)
                await asyncio.Event().wait()

        for work, error in ((failing, ZeroDivisionError), (late, TimeoutError)):
            with pytest.raises(error):
                await work()
        assert await table.count() == 4

    on_loop(cluster, work)


def test_transaction_that_did_not_begin_is_entered_again_and_is_not_kept_alive(cluster):
    async def work(client):
        table = await client.create_table("aio_begun", SCHEMA, ["k"])
        txn = client.transaction()
        assert "has not begun" in repr(txn)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0), txn:
                pytest.fail("it began in no time")
        assert not await kept_alive()
        with pytest.raises(InvalidArgument, match="has not begun"):
            await table.upsert([{"k": 1, "v": "a"}], txn=txn)
        async with txn:
            await table.upsert([{"k": 1, "v": "a"}], txn=txn)
            assert await kept_alive() == 1
            with pytest.raises(InvalidArgument, match="entered once"):
                await txn.__aenter__()
        assert await table.count() == 1
        assert "is committed" in repr(txn)
        assert not await kept_alive()

    on_loop(cluster, work)


def test_commit_cancelled_at_each_turn_is_settled_by_abort(cluster):
    """The commit of number n is cancelled after n turns; all of its rows are there, or none."""

    async def work(client):
        table = await client.create_table("aio_unsettled", SCHEMA, ["k"], HASHED)
        for turns in range(0, 24, 2):
            rows = [{"k": turns * 3 + n, "v": "x"} for n in range(3)]
            txn = client.transaction()
            await txn.__aenter__()
            await table.upsert(rows, txn=txn)
            noted: list[Any] = []

            async def commit(txn=txn, noted=noted):
                try:
                    await txn.commit()
                except asyncio.CancelledError as err:
                    noted += getattr(err, "__notes__", [])
                    raise

            committing = asyncio.ensure_future(commit())
            for _ in range(turns):
                await one_turn()
            committing.cancel()
            ended = (await asyncio.gather(committing, return_exceptions=True))[0]
            assert ended is None or isinstance(ended, asyncio.CancelledError)
            if ended is not None and turns:  # else it had not begun
                assert "may be committed" in "".join(noted)
                with pytest.raises(InvalidArgument, match="abort"):
                    await txn.commit()
            await txn.abort()
            found = await table.get([{"k": r["k"]} for r in rows])
            assert found == (rows if txn.commit_time else [None] * 3)
            assert not await kept_alive()

    on_loop(cluster, work)


def test_write_cancelled_in_a_transaction_refuses_its_commit(cluster):
    async def work(client):
        table = await client.create_table("aio_unstaged", SCHEMA, ["k"], HASHED)

        async def interrupted():
            async with client.transaction() as txn:
                writing = asyncio.ensure_future(table.upsert([{"k": 1, "v": "a"}], txn=txn))
                for _ in range(2):
                    await one_turn()
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)

        with pytest.raises(nyala.TransactionDenied, match="interrupted"):
            await interrupted()
        assert await table.count() == 0
        assert not await kept_alive()

    on_loop(cluster, work)
