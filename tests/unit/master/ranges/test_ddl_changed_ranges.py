"""Readers and writers that opened a table before its ranges changed, in a whole simulated cluster."""

from dataclasses import replace

import msgspec
import pytest

from nyala.client.read.read_spec import ReadSpec
from nyala.common.errors import HistoryGone, NotFound, RangesChanged
from nyala.common.expressions.where import parse
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import OPTIONS, SCHEMA
from tests.unit.master.support.ddl_cluster import with_cluster


def changes(found):
    return [(op, key) for op, key, _ in found]


@pytest.mark.row("A4")
def test_client_with_older_partitioning_reads_added_range():
    """D1."""

    async def work(ddl):
        opened = await ddl.create_ranges()
        await ddl.put(opened, 5)
        begin = await ddl.now(opened)
        other = await ddl.alter(await ddl.open(), ("add_range", 20, 30))
        await ddl.put(other, 25)
        early = [replace(opened) for _ in range(6)]
        assert await ddl.keys(early[0]) == [5, 25]
        assert await ddl.count(early[1]) == 2
        assert changes(await ddl.feed(early[2], begin)) == [("insert", 25)]
        assert [r["v"] for r in await ddl.get(early[3], 25)] == [250]
        where = parse("k = 25", SCHEMA)
        assert [r["k"] for r in await ddl.scan(early[4], where=where)] == [25], (
            "the client does not know the range"
        )
        assert [r["k"] for r in await ddl.scan(early[5], latest=True)] == [5, 25]
        assert len(opened.tablets) == 2
        assert all(len(t.tablets) == 3 for t in early), "each client looked the ranges up by itself"

    with_cluster(work)


def test_scan_token_of_older_partitioning_is_valid_for_earlier_time_only():
    async def work(ddl):
        opened = await ddl.create_ranges()
        await ddl.put(opened, 5)
        before = ddl.core.plan(replace(opened), ReadSpec())
        tokens = await ddl.ask(before.verified)
        other = await ddl.alter(await ddl.open(), ("add_range", 20, 30))
        await ddl.put(other, 25)
        found = await ddl.ask(ddl.core.reader.collect_all, tokens)
        assert [b.column("k").to_pylist() for part in found for b in part] == [[5]]
        late = await ddl.ask(ddl.core.reader.tokens, replace(opened), ReadSpec(), 10_000)
        assert len(late) == 2, "planned by a client that does not know the range"
        with pytest.raises(RangesChanged, match="plan it again"):
            await ddl.ask(ddl.core.reader.collect_all, late)
        assert len(await ddl.ask(ddl.core.plan(replace(opened), ReadSpec()).verified)) == 3

    with_cluster(work)


def test_dropped_range_is_readable_at_earlier_times():
    """D2."""

    async def work(ddl):
        opened = await ddl.create_ranges()
        await ddl.put(opened, 5, 6, 15)
        before = await ddl.now(opened)
        await ddl.put(opened, 7)
        early, late = replace(opened), await ddl.open()
        await ddl.alter(await ddl.open(), ("drop_range", 0, 10))
        after = await ddl.now(late)
        for table in (replace(early), late, await ddl.open()):
            assert await ddl.keys(table) == [15]
            assert await ddl.count(table) == 1
            assert [r["k"] for r in await ddl.scan(table, at=before)] == [5, 6, 15]
            assert [r["k"] for r in await ddl.scan(table, at=after)] == [15]
            assert await ddl.get(table, 5, 15) == [None, {"k": 15, "v": 150}]
        for table in (replace(early), await ddl.open()):
            found = await ddl.feed(table, before)
            assert changes(found) == [("delete", 5), ("delete", 6)]
            assert len({at for _, _, at in found}) == 1, "all rows of the range have one end time"
            assert all(before < at <= after for _, _, at in found)
            every = await ddl.feed(table, before, net=False)
            assert changes(every) == [("insert", 7), ("delete", 5), ("delete", 6), ("delete", 7)]
            assert await ddl.feed(table, after) == []
        assert [c for _, c, _ in await ddl.put(replace(early), 8, 16)] == ["no_partition"]
        assert await ddl.keys(early) == [15, 16]

    with_cluster(work)


@pytest.mark.row("A4")
def test_ranges_are_repartitioned_in_one_alteration_with_history_readable():
    """D12, and writers that opened the table early."""

    async def work(ddl):
        opened = await ddl.create_ranges(bounds=((0, 10), (10, 20)))
        await ddl.put(opened, 5, 15)
        first = await ddl.now(opened)
        early = [replace(opened) for _ in range(3)]
        steps = (("drop_range", 0, 10), ("drop_range", 10, 20), ("add_range", 0, 20))
        other = await ddl.alter(await ddl.open(), *steps)
        assert await ddl.keys(other) == []
        assert await ddl.put(early[0], 5, 16, 99) != [], "a row without a range fails"
        second = await ddl.now(opened)
        again = await ddl.alter(
            other, ("drop_range", 0, 20), ("add_range", 0, 8), ("add_range", 8, 20)
        )
        assert await ddl.put(early[1], *range(20)) == []
        for table in (opened, again, early[2]):
            assert await ddl.keys(table) == list(range(20))
            assert [r["k"] for r in await ddl.scan(table, at=first)] == [5, 15]
            assert [r["k"] for r in await ddl.scan(table, at=second)] == [5, 16]
        entries = await ddl.feed(again, 1)
        state: dict[int, None] = {}
        for op, key, at in await ddl.feed(again, 1, net=False):
            assert (op == "insert") == (key not in state), (op, key, at)
            state.pop(key, None) if op == "delete" else state.setdefault(key)
        assert (
            sorted(state)
            == [key for _, key, _ in sorted(entries, key=lambda c: c[1])]
            == list(range(20))
        )

    with_cluster(work)


def test_read_of_dropped_range_fails_after_history_expires():
    async def work(ddl):
        opened = await ddl.create_ranges()
        await ddl.put(opened, 5, 15)
        before = await ddl.now(opened)
        first = opened.tablets[0].id
        held = await ddl.ask(ddl.core.hold, opened, before, 30_000)
        last = await ddl.alter(await ddl.open(), ("drop_range", 0, 10))
        await ddl.cluster.loop.delay(20_000_000)
        assert [r["k"] for r in await ddl.scan(replace(last), at=before)] == [5, 15], (
            "a read at a held time"
        )
        await ddl.ask(held.release)
        await ddl.cluster.until(lambda: first not in ddl.groups(), "the tablet is deleted", 90)
        for table in (replace(opened), replace(last), await ddl.open()):
            for read in (ddl.scan(table, at=before), ddl.feed(table, before)):
                with pytest.raises(HistoryGone, match="were dropped"):
                    await read
            assert await ddl.keys(table) == [15]
            assert await ddl.get(table, 5) == [None]
            assert [c for _, c, _ in await ddl.put(table, 5)] == ["no_partition"]

    with_cluster(work, options=msgspec.structs.replace(OPTIONS, history_max_age_s=10))


def test_dropped_and_recalled_table_includes_its_dropped_ranges():
    async def work(ddl):
        opened = await ddl.create_ranges()
        await ddl.put(opened, 5, 15)
        before = await ddl.now(opened)
        await ddl.alter(await ddl.open(), ("drop_range", 0, 10))
        await ddl.ask(ddl.core.ddl.drop_table, "t", 3600)
        back = await ddl.ask(ddl.core.ddl.recall_table, opened.id)
        assert [r["k"] for r in await ddl.scan(back, at=before)] == [5, 15]
        await ddl.ask(ddl.core.ddl.drop_table, "t")
        await ddl.cluster.until(lambda: not ddl.groups(), "all tablets are deleted")
        with pytest.raises(NotFound):
            await ddl.keys(back)

    with_cluster(work)


def test_lost_dropped_range_can_be_abandoned_with_its_history():
    async def work(ddl):
        opened = await ddl.create_ranges()
        await ddl.put(opened, 5, 15)
        before = await ddl.now(opened)
        lost = opened.tablets[0].id
        last = await ddl.alter(await ddl.open(), ("drop_range", 0, 10))
        request = pb.ReplaceTabletRequest(tablet_id=lost, force=True)
        masters = ddl.core.masters
        await ddl.ask(masters.call, methods.REPLACE_TABLET, request, timeout_ms=10_000)
        await ddl.cluster.until(lambda: lost not in ddl.groups(), "the tablet is deleted")
        assert len((await ddl.open()).tablets) == 1, "the deleted tablet is not replaced"
        for table in (last, await ddl.open()):
            with pytest.raises(HistoryGone, match="were dropped"):
                await ddl.scan(table, at=before)
            assert await ddl.keys(table) == [15]

    with_cluster(work)
