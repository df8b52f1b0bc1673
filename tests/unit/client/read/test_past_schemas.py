"""Reads of the past through real servers in virtual time: each time has the columns of then."""

from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from nyala.client.feed.follower import FollowOptions, follow
from nyala.client.feed.rounds import Rounds
from nyala.client.read.read_spec import ReadSpec, changes_spec, scan_spec
from nyala.common.errors import HistoryGone, NotReady, SchemaMismatch
from nyala.common.hybrid_time import to_micros
from nyala.master.catalog import past_columns
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import run
from tests.unit.master.support.ddl_cluster import Ddl, rows_in, with_cluster

OPTIONS = FollowOptions(poll_ms=1_000, hold_ms=0, heartbeat_ms=500)
KINDS = (pa.int64(), pa.string())


async def read(ddl, table, at, columns=None, where=None):
    """Return rows at a time, by key, as `Table.scan` reads them."""
    then = await ddl.ask(ddl.core.past.at, table, at)
    spec = scan_spec(then.schema, columns, where, at, None, False, "snapshot", None)
    plan = ddl.core.plan(table, past(spec, then))
    return sorted(rows_in(await ddl.ask(plan.collect)), key=lambda r: r["k"])


def past(spec, then):
    return replace(spec, schema=then.schema, past=then.dropped)


async def write(ddl, table, keys, **columns):
    batch = pa.RecordBatch.from_pydict({"k": pa.array(keys, pa.int64()), **columns})
    assert await ddl.write(table, batch) == []


@pytest.mark.row("A14")
def test_each_time_has_the_columns_of_then():
    async def work(ddl):
        table = first = await ddl.create(tablets=3)
        await ddl.put(table, 1, 2)
        before = await ddl.now(table)
        table = await ddl.alter(table, ("drop_column", "v"), ("add_column", "n", pa.int64()))
        between = await ddl.now(table)
        table = await ddl.alter(
            table, ("add_column", "v", pa.string()), ("rename_column", "n", "m")
        )
        await write(ddl, table, [2, 3], v=pa.array(["b", "c"]))
        after = await ddl.now(table)
        for opened in (table, first):
            assert await read(ddl, opened, before) == [{"k": 1, "v": 10}, {"k": 2, "v": 20}]
            assert await read(ddl, opened, before, ["v", "k"], "v > 10") == [{"v": 20, "k": 2}]
            assert await read(ddl, opened, between) == [{"k": 1, "n": None}, {"k": 2, "n": None}]
            assert await read(ddl, opened, after) == [
                {"k": 1, "m": None, "v": None},
                {"k": 2, "m": None, "v": "b"},
                {"k": 3, "m": None, "v": "c"},
            ]
        for process in ddl.cluster.tservers:
            process.kill()
            process.start()
        assert await read(ddl, table, before) == [{"k": 1, "v": 10}, {"k": 2, "v": 20}]
        ddl.kill_leader().start()
        assert await read(ddl, first, between, ["n", "k"]) == [
            {"n": None, "k": 1}, {"n": None, "k": 2},
        ]  # fmt: skip

    with_cluster(work)


def test_tablet_that_skipped_a_schema_reads_the_column_that_it_never_had():
    async def work(ddl):
        table = await ddl.create(tablets=2)
        await ddl.put(table, 1, 2)
        for process in ddl.cluster.tservers:  # no tablet follows
            process.kill()
        steps = ("add_column", "n", pa.int64()), ("drop_column", "n")
        times = []
        for step in steps:
            with pytest.raises(NotReady):
                await ddl.alter(table, step)
            table = await ddl.ask(ddl.core.locations.open, "t", 5_000)
            times.append(table.columns_from)
        for process in ddl.cluster.tservers:
            process.start()
        assert await read(ddl, table, times[0]) == [
            {"k": 1, "v": 10, "n": None}, {"k": 2, "v": 20, "n": None},
        ]  # fmt: skip
        assert await read(ddl, table, times[1]) == [{"k": 1, "v": 10}, {"k": 2, "v": 20}]

    with_cluster(work)


def test_columns_of_a_time_before_the_oldest_kept_are_refused(monkeypatch):
    monkeypatch.setattr(past_columns, "MAX_PAST", 1)

    async def work(ddl):
        table = await ddl.create()
        await ddl.put(table, 1)
        before = await ddl.now(table)
        for name in ("a", "b"):
            table = await ddl.alter(table, ("add_column", name, pa.int64()))
        with pytest.raises(HistoryGone, match="columns of table 't' are not kept") as gone:
            await ddl.ask(ddl.core.past.at, table, before)
        earliest = int(gone.value.details["horizon"])
        assert await read(ddl, table, earliest) == [{"k": 1, "v": 10, "a": None}]

    with_cluster(work)


def test_read_of_a_time_goes_on_without_masters_if_the_table_had_its_columns_then():
    async def work(ddl):
        table = await ddl.create()
        await ddl.put(table, 1)
        before = await ddl.now(table)
        table = await ddl.alter(table, ("add_column", "n", pa.int64()))
        after = await ddl.now(table)
        for process in ddl.cluster.masters:
            process.kill()
        assert await read(ddl, table, after) == [{"k": 1, "v": 10, "n": None}]
        with pytest.raises(Exception, match="master"):
            await ddl.ask(ddl.core.past.at, table, before)
        for process in ddl.cluster.masters:
            process.start()
        assert await read(ddl, table, before) == [{"k": 1, "v": 10}]

    with_cluster(work)


async def history(ddl, rng, steps):
    """Alter and write at random; return the table, and (time, names, rows by key) after each step."""
    table, moments = await ddl.create(tablets=2), []
    rows: dict[int, dict[str, Any]] = {}
    kinds = {"v": pa.int64()}
    for _ in range(steps):
        names = [c.name for c in table.schema.value_columns]
        free = [n for n in ("v", "a", "b", "c") if n not in names]
        kind = rng.choice(["write", "write", "add", "drop", "rename", "again"])
        if kind == "write" or not (names and free):
            keys = rng.sample(range(6), 3)
            given = {n: [rng.randrange(100) for _ in keys] for n in names if rng.random() < 0.7}
            text = {n: [str(v) for v in values] for n, values in given.items()}
            given = {n: v if kinds[n] == pa.int64() else text[n] for n, v in given.items()}
            await write(ddl, table, keys, **{n: pa.array(v, kinds[n]) for n, v in given.items()})
            for place, key in enumerate(keys):
                row = rows.setdefault(key, dict.fromkeys(names))
                row |= {n: values[place] for n, values in given.items()}
        elif kind == "add":
            kinds[free[0]] = rng.choice(KINDS)
            table = await ddl.alter(table, ("add_column", free[0], kinds[free[0]]))
            rows = {k: r | {free[0]: None} for k, r in rows.items()}
        elif kind == "rename":
            old = rng.choice(names)
            table = await ddl.alter(table, ("rename_column", old, free[0]))
            kinds[free[0]] = kinds[old]
            rows = {
                k: {free[0] if n == old else n: v for n, v in r.items()} for k, r in rows.items()
            }
        else:
            gone = rng.choice(names)
            changes: list[tuple[Any, ...]] = [("drop_column", gone)]
            if kind == "again":
                kinds[gone] = rng.choice(KINDS)
                changes.append(("add_column", gone, kinds[gone]))
            table = await ddl.alter(table, *changes)
            rows = {k: {n: v for n, v in r.items() if n != gone} for k, r in rows.items()}
            if kind == "again":
                rows = {k: r | {gone: None} for k, r in rows.items()}
        every = tuple(c.name for c in table.schema.columns)
        moments.append((await ddl.now(table), every, {k: dict(r) for k, r in rows.items()}))
    return table, moments


@pytest.mark.parametrize("seed", range(2))
def test_random_history_reads_the_same_by_scans_and_by_a_followed_feed(seed):
    async def work(ddl):
        table, moments = await history(ddl, Random(seed), 14)
        for at, names, rows in moments:
            found = await read(ddl, table, at)
            assert found == [{"k": k, **rows[k]} for k in sorted(rows)], names
            assert all(tuple(r) == names for r in found)
        start, last = moments[3][0], moments[-1][0]
        then = await ddl.ask(ddl.core.past.at, table, start)
        spec = past(changes_spec(then.schema, start, None, False, None, None), then)
        feed = await ddl.ask(lambda: follow(ddl.core, table, spec, OPTIONS))
        seen = []
        while feed.position < last:
            batch = await ddl.ask(feed.next)
            for row in batch.to_pylist():
                stamp, _ = row.pop("_timestamp"), row.pop("_op")
                _, names, rows = next(m for m in moments if stamp <= m[0])
                assert tuple(row) == names
                assert row == {"k": row["k"], **rows[row["k"]]}
                seen.append(stamp)
        assert seen == sorted(seen)
        await ddl.ask(feed.close)

    with_cluster(work, seed=seed)


def test_feed_from_the_past_begins_with_the_columns_of_then():
    async def work(ddl):
        table = await ddl.create()
        start = await ddl.now(table)
        await ddl.put(table, 1)
        table = await ddl.alter(table, ("rename_column", "v", "w"), ("add_column", "n", pa.int64()))
        await write(ddl, table, [2], w=pa.array([5]))
        table = await ddl.alter(table, ("drop_column", "w"))
        await write(ddl, table, [3], n=pa.array([6]))
        last = await ddl.now(table)
        then = await ddl.ask(ddl.core.past.at, table, start)
        some = changes_spec(then.schema, start, None, False, ["v"], None)
        every = changes_spec(then.schema, start, None, False, None, None)
        feed = await ddl.ask(lambda: follow(ddl.core, table, past(every, then), OPTIONS))
        seen = []
        while feed.position < last:
            batch = await ddl.ask(feed.next)
            names = batch.schema.names[:-2]
            seen.append((batch.schema_changed, names, [r["k"] for r in batch.to_pylist()]))
        assert [s for s in seen if s[0] or s[2]] == [
            (False, ["k", "v"], [1]),
            (True, ["k", "w", "n"], []),
            (False, ["k", "w", "n"], [2]),
            (True, ["k", "n"], []),
            (False, ["k", "n"], [3]),
        ]
        await ddl.ask(feed.close)
        feed = await ddl.ask(lambda: follow(ddl.core, table, past(some, then), OPTIONS))
        assert (await ddl.ask(feed.next)).to_pylist()[0]["v"] == 10
        assert (await ddl.ask(feed.next)).schema_changed
        assert (await ddl.ask(feed.next)).to_pylist()[0]["w"] == 5
        with pytest.raises(SchemaMismatch, match=r"'w'.*since=feed.position"):
            await ddl.ask(feed.next)
        again = feed.position
        await ddl.ask(feed.close)
        then = await ddl.ask(ddl.core.past.at, table, again + 1)
        assert then.schema.by_name.keys() == {"k", "n"}
        spec = ReadSpec(changes=True, since=again, net=False, schema=then.schema)
        feed = await ddl.ask(lambda: follow(ddl.core, table, spec, OPTIONS))
        assert [r["n"] for r in (await ddl.ask(feed.next)).to_pylist()] == [6]
        await ddl.ask(feed.close)

    with_cluster(work)


def test_rounds_of_a_feed_that_goes_back_have_the_columns_of_then_again():
    async def work(ddl):
        table = await ddl.create()
        start = await ddl.now(table)
        await ddl.put(table, 1)
        table = await ddl.alter(table, ("rename_column", "v", "w"))
        await write(ddl, table, [2], w=pa.array([5]))
        last = await ddl.now(table)
        then = await ddl.ask(ddl.core.past.at, table, start)
        spec = past(changes_spec(then.schema, start, None, False, ["v"], None), then)
        own = await ddl.open()
        own.schema = then.schema
        rounds = Rounds(ddl.core, own, spec, 10_000)

        async def names():
            found = [b async for b in rounds.read(start, last)]
            return [b.schema.names[:-2] for b in found if b.num_rows]

        assert await ddl.ask(names) == [["k", "v"], ["k", "w"]]
        assert await ddl.ask(names) == [["k", "v"], ["k", "w"]]

    with_cluster(work)


@pytest.mark.parametrize("seconds", [-2, 5])
def test_alteration_takes_effect_above_what_its_client_has_seen_under_a_slow_clock(seconds):
    """And under a fast one not so late that tablets would have to wait for it."""

    async def main(loop):
        cluster = SimCluster(loop, 5)
        for process in cluster.masters:
            process.clock.skew_us = seconds * 1_000_000
        ddl = Ddl(cluster, await cluster.start())
        table = await ddl.create()
        await ddl.put(table, 1)
        before = await ddl.now(table)
        table = await ddl.alter(table, ("drop_column", "v"))
        after = await ddl.now(table)
        assert before < table.columns_from < after
        assert to_micros(table.columns_from) - to_micros(before) < 2_000_000
        assert await read(ddl, table, before) == [{"k": 1, "v": 10}]
        assert await read(ddl, table, after) == [{"k": 1}]

    run(main, max_time_s=400)
