"""Followed feeds through real servers in virtual time: positions, schemas, holds, errors."""

from contextlib import asynccontextmanager
from dataclasses import replace
from unittest.mock import patch

import pyarrow as pa
import pytest

from nyala.client.feed import rounds
from nyala.client.feed.change_feed import follow_options
from nyala.client.feed.follower import FollowOptions, follow
from nyala.client.read.read_spec import ReadSpec, changes_spec
from nyala.common.errors import (
    HistoryGone,
    InvalidArgument,
    NotFound,
    SchemaMismatch,
    TimedOut,
    Unavailable,
)
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import reads_pb2
from tests.sim.systems.cluster import SCHEMA
from tests.sim.systems.table_client import rows_of
from tests.unit.client.support.holds import SECOND, scenario
from tests.unit.master.support.ddl_cluster import with_cluster

Copy = dict[int, int]
OPTIONS = FollowOptions(poll_ms=1_000, hold_ms=0)


async def begin(on, core, table, *, since=1, options=OPTIONS, **spec):
    return await on(
        lambda: follow(core, table, ReadSpec(changes=True, since=since, net=False, **spec), options)
    )


@asynccontextmanager
async def followed(ddl, table, **more):
    feed = await begin(ddl.ask, ddl.core, table, **more)
    yield feed
    await ddl.ask(feed.close)


async def until_copied(ask, feed, copy, wanted):
    """Apply batches to a copy until it is as wanted; return the batches."""
    batches = []
    while copy != wanted:
        batches.append(await ask(feed.next))
        for row in batches[-1].to_pylist():
            if row["_op"] == "delete":
                del copy[row["k"]]
            else:
                copy[row["k"]] = row["v"]
    return batches


def test_filtered_feed_deletes_rows_that_leave_and_inserts_those_that_enter():
    async def work(ddl):
        table = await ddl.create(tablets=3)
        spec = changes_spec(SCHEMA, 1, None, False, None, "v >= 10", before=True)
        async with followed(ddl, table, where=spec.where, before=True) as feed:
            await ddl.write(table, rows_of([1, 2, 3], [10, 5, 10]))
            copy: Copy = {}
            await until_copied(ddl.ask, feed, copy, {1: 10, 3: 10})
            await ddl.write(table, rows_of([1, 2, 3], [20, 6, 6]))
            (batch,) = await until_copied(ddl.ask, feed, copy, {1: 20})
            assert sorted((r["k"], r["_op"], r["v"], r["_before"]) for r in batch.to_pylist()) == [
                (1, "update", 20, {"k": 1, "v": 10}), (3, "delete", None, {"k": 3, "v": 10}),
            ]  # fmt: skip
            await ddl.write(table, rows_of([2], [12]))
            (batch,) = await until_copied(ddl.ask, feed, copy, {1: 20, 2: 12})
            assert [(r["_op"], r["_before"]) for r in batch.to_pylist()] == [("insert", None)]

    with_cluster(work)


def test_long_history_is_read_in_rounds_with_complete_positions():
    async def work(ddl):
        table = await ddl.create(tablets=2)
        for value in range(40):
            await ddl.write(table, rows_of([value % 7, 100 + value], [value, value]))
        end = await ddl.now(table)
        with patch.object(rounds, "ROUND_VERSIONS", 10):
            async with followed(ddl, table, before=True) as feed:
                copy: Copy = {}
                positions = []
                while feed.position < end:
                    batch = await ddl.ask(feed.next)
                    for row in batch.to_pylist():
                        assert copy.get(row["k"]) == (row["_before"] or {}).get("v")
                        copy[row["k"]] = row["v"]
                    at = await ddl.scan(table, at=batch.through)
                    assert copy == {r["k"]: r["v"] for r in at}
                    positions.append(batch.through)
                assert len(set(positions)) >= 5

    with_cluster(work)


def test_new_columns_and_names_are_told_and_dropped_ones_are_an_error():
    async def work(ddl):
        table = await ddl.create()
        await ddl.put(table, 1)
        plain = await begin(ddl.ask, ddl.core, table)
        some = await begin(ddl.ask, ddl.core, table, columns=("k", "v"))
        for feed in (plain, some):
            assert (await ddl.ask(feed.next)).to_pylist()[0]["v"] == 10
        await ddl.alter(table, ("add_column", "n", pa.int64()))
        told = await ddl.ask(plain.next)
        assert told.schema_changed
        assert told.schema.names == ["k", "v", "n", "_op", "_timestamp"]
        assert plain.definition.column("n").nullable
        fresh = await ddl.open()
        await ddl.alter(fresh, ("rename_column", "v", "w"))
        told = await ddl.ask(plain.next)
        assert (told.schema_changed, told.schema.names) == (
            True,
            ["k", "w", "n", "_op", "_timestamp"],
        )
        told = await ddl.ask(some.next)
        assert (told.schema_changed, told.schema.names) == (True, ["k", "w", "_op", "_timestamp"])
        fresh = await ddl.open()
        await ddl.alter(fresh, ("drop_column", "w"))
        with pytest.raises(SchemaMismatch, match=r"'w'.*since=feed.position"):
            await ddl.ask(some.next)
        assert (await ddl.ask(plain.next)).schema.names == ["k", "n", "_op", "_timestamp"]

    with_cluster(work)


def test_servers_tell_changes_long_before_the_next_read_is_due():
    async def work(ddl):
        table = await ddl.create(tablets=3)
        slow = FollowOptions(poll_ms=60_000, hold_ms=0)
        async with followed(ddl, table, options=slow) as feed:
            await ddl.put(table, 1)
            await ddl.ask(feed.next)
            for key in (2, 3, 4):
                waiting = ddl.cluster.clients[0].run(feed.next)
                await ddl.cluster.loop.delay(3 * SECOND)
                assert not waiting.done()
                await ddl.put(table, key)
                await ddl.cluster.loop.delay(SECOND)
                assert waiting.done(), "long before the next read is due"
                assert [r["k"] for r in (await waiting).to_pylist()] == [key]

    with_cluster(work)


def test_feed_that_is_closed_ends_a_call_that_waits():
    async def work(ddl):
        table = await ddl.create()
        feed = await begin(ddl.ask, ddl.core, table)
        waiting = ddl.cluster.clients[0].run(feed.next)
        await ddl.cluster.loop.delay(3 * SECOND)
        await ddl.ask(feed.close)
        assert await waiting is None
        assert await ddl.ask(feed.next) is None
        await ddl.ask(feed.close)

    with_cluster(work)


def test_call_that_was_interrupted_loses_no_batch():
    async def work(ddl):
        table = await ddl.create()
        feed = await begin(ddl.ask, ddl.core, table)
        waiting = ddl.cluster.clients[0].run(feed.next)
        await ddl.cluster.loop.delay(3 * SECOND)
        waiting.cancel()
        await ddl.put(table, 1)
        await ddl.cluster.loop.delay(3 * SECOND)
        assert [r["k"] for r in (await ddl.ask(feed.next)).to_pylist()] == [1]

    with_cluster(work)


def test_waits_with_wrong_arguments_are_refused():
    async def work(ddl):
        table = await ddl.create()
        tablet = table.tablets[0]

        async def wait(tablets, wait_ms):
            request = reads_pb2.AwaitChangesRequest(tablet_ids=tablets, wait_ms=wait_ms)
            return await ddl.core.env.rpc.call(
                tablet.addresses()[0], methods.AWAIT_CHANGES, request, timeout_ms=5_000
            )

        for tablets, wait_ms in (([], 10), ([tablet.id] * 10_001, 10), ([tablet.id], 60_001)):
            with pytest.raises(InvalidArgument, match="1 to 10000 tablets"):
                await ddl.ask(wait, tablets, wait_ms)
        with pytest.raises(Unavailable, match="no replica"):
            await ddl.ask(wait, [tablet.id, "0" * 32], 10)

    with_cluster(work)


def test_feed_continues_after_an_error():
    async def work(ddl):
        table = await ddl.create()
        await ddl.put(table, 1)
        ddl.core.options = replace(ddl.core.options, timeout_ms=2_000)
        feed = await begin(ddl.ask, ddl.core, table)
        copy: Copy = {}
        await until_copied(ddl.ask, feed, copy, {1: 10})
        stopped = [p for p in ddl.cluster.tservers if p.alive][:2]
        for process in stopped:
            process.kill()
        with pytest.raises((TimedOut, Unavailable)):
            await ddl.ask(feed.next)
        for process in stopped:
            process.start()
        await ddl.cluster.loop.delay(10 * SECOND)
        await ddl.put(table, 2)
        await until_copied(ddl.ask, feed, copy, {1: 10, 2: 20})

    with_cluster(work)


def test_times_that_cannot_be_followed_are_refused():
    async def work(ddl):
        table = await ddl.create()
        now = await ddl.now(table)
        with pytest.raises(InvalidArgument, match="100 s in the future"):
            await begin(ddl.ask, ddl.core, table, since=now + (100_000_000 << 12))
        feed = await begin(ddl.ask, ddl.core, table, since=now)
        await ddl.ask(ddl.core.ddl.drop_table, "t")
        with pytest.raises(NotFound):
            await ddl.ask(feed.next)

    with_cluster(work)


@pytest.mark.parametrize(
    ("name", "value"),
    [("poll", 0), ("poll", "1"), ("poll", 61), ("poll", True), ("hold", -1), ("hold", 8 * 86_400),
     ("hold", None), ("heartbeat", 0), ("heartbeat", float("nan"))],
)  # fmt: skip
def test_options_out_of_their_limits_are_refused(name, value):
    given = {"poll": 1, "hold": 10, "heartbeat": None, name: value}
    with pytest.raises(InvalidArgument, match=f"follow: {name}="):
        follow_options(**given)


@scenario
async def test_history_is_held_for_slow_follower_and_moves_forward(s):
    first = await s.write(1)
    options = FollowOptions(poll_ms=1_000, hold_ms=600_000, heartbeat_ms=1_000)
    feed = await begin(s.on, s.core, s.table, since=first, options=options)
    await s.overwrite()
    await s.settle()
    for status in await s.statuses():
        assert [(h.name[:7], h.at) for h in status.holds] == [("follow-", first)]
    found = [r["v"] for _ in range(2) for r in (await s.on(feed.next)).to_pylist()]
    assert found == [1, 2, 3, 4], "the history that a compaction would have removed"
    await s.loop.delay(6 * SECOND)
    held = {h.at for status in await s.statuses() for h in status.holds}
    assert len(held) == 1
    assert first < held.pop() <= feed.position
    await s.on(feed.close)
    assert not any(status.holds for status in await s.statuses())


@scenario
async def test_follower_that_falls_behind_its_hold_gets_an_error_with_advice(s):
    first = await s.write(1)
    options = FollowOptions(poll_ms=1_000, hold_ms=5_000)
    feed = await begin(s.on, s.core, s.table, since=first, options=options)
    await s.loop.delay(7 * SECOND)
    await s.overwrite()
    await s.settle()
    with pytest.raises(HistoryGone, match=r"copy the table with scan\(at=at\)") as gone:
        await s.on(feed.next)
    assert int(gone.value.details["horizon"]) > first
    with pytest.raises(HistoryGone, match=r"copy the table with scan\(at=at\)"):
        await begin(s.on, s.core, s.table, since=first, options=options)


@scenario
async def test_broken_feed_is_read_again_without_the_rows_that_had_arrived(s):
    rows = pa.record_batch([pa.array(range(900)), pa.array(range(900))], names=["k", "v"])
    await s.on(
        lambda: s.core.session.write(
            s.table, pb.UPSERT, rows, all_or_nothing=False, timeout_ms=20_000
        )
    )
    s.core.reader.batch_rows = 100
    planned = await s.on(s.core.plan(s.table, ReadSpec(changes=True, since=1)).make_tokens)
    (token,) = planned.tokens

    async def read():
        found = []
        async for batch in s.core.reader.run(token):
            found += batch.column("k").to_pylist()
            if len(found) in (200, 500):
                s.cluster.leader_of(s.group).kill()
                for process in s.cluster.tservers:
                    if not process.alive and len(found) == 500:
                        process.start()
        return found

    assert await s.on(read) == list(range(900))
