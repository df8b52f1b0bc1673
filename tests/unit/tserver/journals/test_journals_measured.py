"""Journals of real tablet servers in virtual time: memory, metrics, pages, checksums."""

import asyncio

import pytest

from nyala.common.errors import Throttled
from nyala.common.options import MIB
from nyala.journal import steps
from nyala.replica.memory import MemoryPart
from nyala.wire import methods
from nyala.wire.proto import journal_pb2 as jb
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.tserver.support.journal_group import KIND, with_journal
from tests.unit.tserver.support.tablet_group import refused


def test_checksum_comparison_finds_differing_replica():
    async def work(group):
        await group.append(*"abcde")
        sums, problems = await group.compare()
        assert problems == []
        assert [(s.table, s.rows) for s in sums] == [("ops", 5)] * 3
        assert len({s.checksum for s in sums}) == 1
        assert (await group.check()).problems == []
        group.journals()[1].state.apply(steps.Step([], [steps.SetKey("k", b"v")]), 1 << 62)
        await group.append("f")
        _, problems = await group.compare()
        assert len(problems) == 1
        assert problems[0].startswith(f"journal ops, tablet {group.tablet}: its replicas differ")
        assert "6 entries and keys" in problems[0]
        assert "7 entries and keys" in problems[0]

    with_journal(work)


def test_checksum_at_a_time_is_independent_of_apply_groups():
    async def work(group):
        late = group.holders()[1]
        late.kill()
        at = []
        for text in "abcd":
            await group.append(text)
            at.append(await group.checksum_of(group.leader))
        await late.start()
        for server in group.holders():
            for count, then in enumerate(at, start=1):
                assert then.rows == count
                assert await group.checksum_of(server, then.at) == then

    with_journal(work)


def test_journal_memory_has_its_own_limit_beside_the_budget():
    async def work(group):
        server = group.leader.server
        ids = await group.append(*("x" * 415_000 for _ in range(10)))
        memory, measured = server.host.memory, server.metrics.registry.get_sample_value
        await group.cluster.until(
            lambda: memory.of(MemoryPart.ROWS) < 100_000, "flushable memory is flushed"
        )
        await group.cluster.loop.delay(2_000_000)
        assert 4_150_000 < measured("nyala_journal_resident_bytes") < 4_190_000
        assert not memory.under_pressure
        refusal = await refused(group.append("x" * 400_000))
        assert isinstance(refusal, Throttled)
        assert "invalidate entries, delete logs" in refusal.message
        many = range(ids[-1] + 1, ids[-1] + 9_900)  # more bytes than are left
        freeing = jb.InvalidateEntries(log="log", ids=[*ids[:8], *many])
        assert (await group.step(jb.JournalChange(invalidate=freeing))).done.ids
        await group.cluster.until(
            lambda: measured("nyala_journal_resident_bytes") < 2_500_000, "the metric is updated"
        )
        await group.append("x" * 400_000)

    with_journal(work, memory_budget_bytes=8 * MIB)


def test_metrics_and_pages_include_journals():
    async def work(group):
        await group.append("a", "b")
        await group.cluster.create_table(group.core, "t")
        server = group.leader.server
        measured = server.metrics.registry.get_sample_value
        labels = {"table": "ops", "tablet": group.tablet}
        assert measured("nyala_tablet_journal_items", labels) == 2
        assert measured("nyala_tablet_memory_bytes", labels) > 0
        assert measured("nyala_tablet_rowset_count", labels) is None, "only tables have rowsets"
        page = server.tablets_page()
        rows = {row[0]: dict(zip(page.headings, row, strict=True)) for row in page.rows}
        assert (rows["ops"]["entries and keys"], rows["ops"]["rowsets"]) == ("2", "")
        if "t" in rows:
            assert (rows["t"]["entries and keys"], rows["t"]["rowsets"]) == ("", "0")

    with_journal(work)


@pytest.mark.row("A18")
def test_maintenance_page_lists_what_is_under_way_and_what_waits():
    async def work(group):
        await group.append("a", "b")
        server = group.leader.server
        headings = server.maintenance_page().headings

        def shown():
            return [dict(zip(headings, row, strict=True)) for row in server.maintenance_page().rows]

        (flush,) = shown()
        assert (flush["table"], flush["tablet"]) == ("ops", group.tablet)
        assert (flush["operation"], flush["state"], flush["running s"]) == ("flush", "waits", "")
        assert float(flush["score"]) > 0
        assert int(flush["bytes in memory"].replace(",", "")) > 0
        assert int(flush["bytes of log"].replace(",", "")) > 0
        group.leader.delays.compute_us = 30e6
        flushing = asyncio.ensure_future(server.host.find(group.tablet).flush())
        await group.cluster.until(
            lambda: [row["state"] for row in shown()] == ["under way"], "the flush is under way"
        )
        await group.cluster.loop.delay(1_000_000)
        assert not flushing.done()
        assert float(shown()[0]["running s"]) >= 1
        assert await flushing
        assert shown() == []

    with_journal(work)


def test_journal_memory_counts_steps_between_measurements():
    async def work(group):
        refusal = await refused(group.append(*("x" * 400_000 for _ in range(11))))
        assert isinstance(refusal, Throttled)
        assert "invalidate entries, delete logs" in refusal.message

    with_journal(work, memory_budget_bytes=8 * MIB)


def test_memory_of_dropped_journals_is_not_counted():
    async def work(group):
        server = group.leader.server
        await group.append("x" * 100_000)
        measured = server.metrics.registry.get_sample_value
        await group.cluster.until(
            lambda: measured("nyala_journal_resident_bytes") > 100_000, "it is measured"
        )
        await group.define(methods.DROP_TABLE, pb.DropTableRequest(name="ops", kind=KIND))
        await group.cluster.until(
            lambda: measured("nyala_journal_resident_bytes") == 0, "the journal is deleted"
        )

    with_journal(work)
