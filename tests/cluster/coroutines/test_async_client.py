"""The asynchronous client on a real cluster: every kind of call, cancellation, and loops."""

import asyncio
import os
import threading
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import InvalidArgument, NotFound, NyalaError
from tests.cluster.support.loops import on_loop, one_turn
from tests.waiting import within

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
HASHED = nyala.Partition(hash=[nyala.Hash(["k"], 3)])


def test_rows_written_on_a_loop_are_looked_up_and_scanned(cluster):
    async def work(client):
        table = await client.create_table("aio_rows", SCHEMA, ["k"], HASHED)
        assert (await table.insert([{"k": k, "v": "a"} for k in range(20)])).rows == 20
        again = await table.insert([{"k": 1, "v": "b"}])
        assert again.errors.column("code").to_pylist() == ["already_present"]
        await asyncio.gather(*(table.upsert([{"k": k, "v": "b"}]) for k in range(40)))
        found = await asyncio.gather(*(table.get({"k": k}) for k in range(41)))
        assert found == [{"k": k, "v": "b"} for k in range(40)] + [None]
        assert await table.get([{"k": 3}, {"k": 99}], ["v"]) == [{"v": "b"}, None]
        await table.delete([{"k": 0}])
        await table.update_ignore([{"k": 0, "v": "c"}])
        assert await table.count() == 39
        scan = table.scan(["k"], where="k < 5", order=True)
        batches = [batch async for batch in scan]
        assert [k for batch in batches for k in batch.column("k").to_pylist()] == [1, 2, 3, 4]
        assert (await table.scan(limit=7).to_arrow()).num_rows == 7
        assert (await scan.to_pandas())["k"].tolist() == [1, 2, 3, 4]
        assert await scan.at() > 0
        assert "aio_rows" in await client.tables()

    on_loop(cluster, work)


def test_streams_of_rows_are_written_and_read_at_an_earlier_time(cluster):
    async def work(client):
        table = await client.create_table("aio_streams", SCHEMA, ["k"], HASHED)
        rows = ({"k": k, "v": "s"} for k in range(3_000))
        assert (await table.upsert(rows)).rows == 3_000
        at = await client.now()
        await table.write([{"k": 1, "_op": "delete"}, {"k": 5_000, "_op": "upsert"}])
        await table.upsert(
            pa.table({"k": range(5_000, 12_000)}, schema=SCHEMA.empty_table().select(["k"]).schema)
        )
        assert await table.scan(at=at).count() == 3_000
        empty: list[Any] = [[], pd.DataFrame(), pa.table({}), iter(())]
        for nothing in empty:
            done = [
                await table.upsert(nothing),
                await table.delete(nothing),
                await table.write(nothing),
            ]
            assert [d.rows for d in done] == [0, 0, 0]
        with pytest.raises(ZeroDivisionError):
            await table.upsert({"k": 1 // k} for k in (1, 0))
        copy = await client.create_table("aio_copy", SCHEMA, ["k"], HASHED)
        assert (await copy.upsert(table.scan(at=at))).rows == 3_000

        async def source():
            for k in range(20_000, 22_500):
                yield {"k": k, "v": "s"}
            yield pa.table({"k": [1], "v": ["t"]})

        seen: list[int] = []
        assert (await copy.upsert(source(), progress=seen.append)).rows == 2_501
        assert seen == [1_000, 2_000, 2_500, 2_501]
        assert await copy.count() == 5_500
        with pytest.raises(NotFound, match="no table 'aio_nowhere'"):
            await client.open_table("aio_nowhere")
        await client.drop_table("aio_streams")
        with cluster.connect() as threads:
            other = threads.table("aio_copy")
            with pytest.raises(InvalidArgument, match=r"nyala\.aio"):
                await asyncio.to_thread(other.upsert, source())

    on_loop(cluster, work)


def test_calls_from_another_loop_are_refused(cluster):
    async def make():
        client = await nyala.aio.connect(cluster.masters)
        made = await client.tables()
        await client.close()
        await client.close()
        return client, made

    client, _ = asyncio.run(make())
    with pytest.raises(InvalidArgument, match="belongs to another event loop"):
        asyncio.run(client.tables())

    async def closed():
        async with await nyala.aio.connect(cluster.masters) as other:
            pass
        with pytest.raises(InvalidArgument, match="closed"):
            await other.tables()

    asyncio.run(closed())


def test_writes_cancelled_at_each_turn_of_the_loop_take_effect_once_or_not_at_all(cluster):
    """The write of number n is cancelled after n turns; the client then writes and reads as before."""

    async def work(client):
        table = await client.create_table("aio_cancelled", SCHEMA, ["k"], HASHED)
        await table.upsert([{"k": -1, "v": "warm"}])
        begun = set(asyncio.all_tasks())
        for turns in range(24):
            rows = [{"k": turns * 2 + n, "v": "x"} for n in range(2)]  # in two tablets, or in one
            writing = asyncio.ensure_future(table.insert(rows))
            reading = asyncio.ensure_future(table.get({"k": -1}))
            counting = asyncio.ensure_future(table.scan(where="k < 0").count())
            for _ in range(turns):
                await one_turn()
            for task in (writing, reading, counting):
                task.cancel()
            ended = await asyncio.gather(writing, reading, counting, return_exceptions=True)
            assert all(
                not isinstance(e, BaseException) or isinstance(e, asyncio.CancelledError)
                for e in ended
            )
            assert (await table.upsert([{"k": -1, "v": str(turns)}])).rows == 1
            assert await table.get({"k": -1}) == {"k": -1, "v": str(turns)}
        keys = (await table.scan(["k"], where="k >= 0").to_arrow()).column("k").to_pylist()
        assert len(keys) == len(set(keys))
        left = [t for t in asyncio.all_tasks() - begun if "read of a tablet" in t.get_name()]
        assert not left, "no stream from a server is left open"

    on_loop(cluster, work)


def test_cancelled_stream_of_rows_has_the_rows_that_are_written(cluster):
    async def work(client):
        table = await client.create_table("aio_half_streamed", SCHEMA, ["k"])
        begun = asyncio.Event()

        async def source():
            for n in range(2):
                yield [{"k": n * 10 + k, "v": "s"} for k in range(10)]
            begun.set()
            await asyncio.Event().wait()

        writing = asyncio.ensure_future(table.upsert(source()))
        await begun.wait()
        writing.cancel()
        partly = None
        try:
            await writing
        except asyncio.CancelledError as err:
            partly = err.__cause__
        if partly is None:  # nothing had been sent
            assert await table.count() == 0
        else:
            assert isinstance(partly, nyala.PartlyWritten)
            assert partly.rows <= await table.count() <= partly.rows + len(partly.unknown)

    on_loop(cluster, work)


def test_calls_in_flight_end_when_their_client_is_closed(cluster):
    """They tried again until their deadline, on connections that were closed."""

    async def main():
        client = await nyala.aio.connect(cluster.masters, timeout_ms=3_600_000)
        table = await client.create_table("aio_closed", SCHEMA, ["k"], HASHED)
        await table.insert(pa.table({"k": range(5_000), "v": ["a"] * 5_000}))
        begun: list[Any] = [
            *(table.get({"k": k}) for k in range(200)),
            *(table.upsert([{"k": k, "v": "b"}]) for k in range(200)),
            table.scan().to_arrow(), table.count(), client.tables(), table.hold(ttl=60),
            client.sql("select max(v) as v from aio_closed"), table.update_where("k >= 0", {"v": "c"}),
        ]  # fmt: skip
        calls = [asyncio.ensure_future(call) for call in begun]
        await one_turn()
        await client.close()
        ended, left = await asyncio.wait(calls, timeout=within(60))
        assert not left
        assert all(isinstance(e, NyalaError | None) for e in (call.exception() for call in ended))

    asyncio.run(main())


def test_forked_process_is_told_that_it_cannot_connect(cluster):
    with cluster.connect():
        child = os.fork()
        if not child:
            try:
                asyncio.run(nyala.aio.connect(cluster.masters))
            except InvalidArgument as err:
                os._exit(7 if "forked" in str(err) else 1)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_scan_that_is_left_early_ends_its_streams(cluster):
    async def work(client):
        table = await client.create_table("aio_left", SCHEMA, ["k"], HASHED)
        await table.upsert([{"k": k, "v": "x"} for k in range(300)])
        for order in (False, True):
            async for batch in table.scan(order=order):
                assert batch.num_rows
                break
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await table.scan(order=order).to_arrow()
        await one_turn()
        for _ in range(1_000):
            if not any("read of a tablet" in t.get_name() for t in asyncio.all_tasks()):
                break
            await one_turn()
        else:
            pytest.fail("a tablet is still read")
        assert await table.count() == 300

    on_loop(cluster, work)


def test_look_ups_and_small_writes_use_no_other_thread(cluster, monkeypatch):
    """Counts turns of the loop, and calls that come from other threads."""

    async def work(client):
        table = await client.create_table("aio_turns", SCHEMA, ["k"])
        await table.upsert([{"k": 1, "v": "x"}])
        await table.get({"k": 1})
        loop: Any = asyncio.get_running_loop()
        crossed: list[Any] = []
        turns = 0
        run_once = loop._run_once
        threadsafe = loop.call_soon_threadsafe

        def counted():
            nonlocal turns
            turns += 1
            run_once()

        def handed_over(*given, **more):
            crossed.append(given)
            return threadsafe(*given, **more)

        monkeypatch.setattr(loop, "_run_once", counted)
        monkeypatch.setattr(loop, "call_soon_threadsafe", handed_over)
        threads = threading.active_count()
        for _ in range(50):
            await table.get({"k": 1})
        gets, turns = turns, 0
        for number in range(50):
            await table.upsert([{"k": 1, "v": str(number)}])
        upserts = turns
        assert not crossed, "no thread hands anything over"
        assert threading.active_count() == threads
        assert gets <= 50 * 4
        assert upserts <= 50 * 9

    on_loop(cluster, work)


def test_changes_are_read_and_followed_and_sql_reads_on_the_loop(cluster):
    async def work(client):
        table = await client.create_table("aio_feed", SCHEMA, ["k"])
        begin = await client.now()
        await table.upsert([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}])
        changes = await table.changes(begin).to_arrow()
        assert changes.column("_op").to_pylist() == ["insert", "insert"]
        async with table.follow(begin, poll=0.05) as feed:
            async for batch in feed:
                assert batch.num_rows == 2
                break
            assert feed.position > begin
        found = await client.sql("select max(k) as k from aio_feed")
        assert found.to_pylist() == [{"k": 2}]

    on_loop(cluster, work)
