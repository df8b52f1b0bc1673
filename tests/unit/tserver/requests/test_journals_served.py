"""Journals through real masters and tablet servers in virtual time: written, read, altered, moved."""

import asyncio
import gc

import pytest

from nyala.common.errors import InvalidArgument, NotLeader, Throttled, TooLarge
from nyala.common.options import MIB
from nyala.journal import changes, steps
from nyala.replica.memory import MemoryPart
from nyala.tserver.journals import service
from nyala.wire import methods
from nyala.wire.proto import flight_pb2, reads_pb2
from nyala.wire.proto import journal_pb2 as jb
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.tserver.support.journal_group import KIND, entry, last_is, set_key, with_journal
from tests.unit.tserver.support.tablet_group import refused


def test_steps_take_effect_once_and_all_replicas_report_them_in_order():
    async def work(group):
        first, second = await group.append("a", "b")
        lost = await group.step(entry("x"), conditions=(last_is(first),))
        assert (lost.failed.condition, lost.failed.actual) == (0, second)
        number = group.sequence
        (third,) = (await group.step(entry("c", invalidates=(first,)))).done.ids
        again = await group.step(entry("x"), conditions=(last_is(first),), sequence=number)
        assert again.duplicate
        assert again.failed == lost.failed, "the result equals the first one"
        assert first < second < third
        assert await group.read() == [b"b", b"c"]
        for server in group.holders():
            answer = await group.tail(0, server)
            if not answer.events:  # it has applied fewer entries, or none
                answer = await group.tail(0, server)
            seen = [e.entry.id for e in answer.events if e.HasField("entry")]
            assert seen in ([second, third], [third]) or answer.rebased

    with_journal(work)


def test_follower_serves_tails_and_refuses_steps_with_not_leader():
    async def work(group):
        (first,) = await group.append("a")
        follower = group.holders()[1]
        answer, _ = await both(group, group.tail(first, follower), group.append("b"))
        assert [e.entry.data for e in answer.events] == [b"b"]
        assert answer.through > first
        nothing = await group.tail(answer.through, follower, wait_ms=100)
        assert (list(nothing.events), nothing.through) == ([], answer.through)
        refusal = await refused(group.step(entry("c"), to=follower))
        assert isinstance(refusal, NotLeader)
        assert refusal.leader == group.uuid(group.leader)

    with_journal(work)


def test_waiting_tail_is_not_rebased_by_other_changes(monkeypatch):
    monkeypatch.setattr(changes, "KEPT", 4)

    async def work(group):
        (first,) = (await group.step(set_key("w/1", "a"))).done.ids
        leader = group.leader

        async def change():
            for number in range(20):
                await group.step(set_key("other", f"{number}"))
            return await group.step(set_key("w/1", "b"))

        answer, done = await both(group, group.tail(first, leader, prefix="w/"), change())
        assert not answer.rebased
        assert [e.set.version for e in answer.events] == list(done.done.ids)

    with_journal(work)


def test_wait_of_tail_is_bounded_by_the_server():
    async def work(group):
        (first,) = await group.append("a")
        began = group.cluster.loop.now_us()
        told = await group.tail(first, group.leader, wait_ms=60_000)
        assert (told.through, list(told.events)) == (first, [])
        assert group.cluster.loop.now_us() - began < 7_000_000

    with_journal(work)


def test_tail_at_leader_ends_when_another_one_is_elected():
    async def work(group):
        (first,) = await group.append("a")
        old, successor = group.holders()[:2]
        began = group.cluster.loop.now_us()

        async def ended():
            err = await refused(group.tail(first, old))
            return err, group.cluster.loop.now_us()

        (err, at), _ = await both(group, ended(), group.step_down(old, group.uuid(successor)))
        assert isinstance(err, NotLeader)
        assert at - began < 2_000_000, "the tail ended before its time-out"
        assert (await group.tail(first, successor, wait_ms=0)).through >= first

    with_journal(work)


def test_tail_at_leader_ends_when_it_steps_down_without_majority():
    async def work(group):
        (first,) = await group.append("a")
        old, *others = group.holders()
        network, loop = group.cluster.network, group.cluster.loop
        network.partition([old.name], [p.name for p in others])
        writing = loop.create_task(refused(group.step(entry("b"), to=old)))
        began = loop.now_us()
        err = await refused(group.tail(first, old))
        assert isinstance(err, NotLeader)
        assert loop.now_us() - began < 4_000_000, "the tail ended before its time-out"
        network.heal()
        await writing

    with_journal(work)


def test_tail_at_follower_continues_through_election():
    async def work(group):
        (first,) = await group.append("a")
        old, successor, other = group.holders()

        async def change():
            await group.step_down(old, group.uuid(successor))
            await group.cluster.until(lambda: group.leader is successor, "the successor leads")
            return await group.append("b")

        answer, (second,) = await both(group, group.tail(first, other), change())
        assert [e.entry.id for e in answer.events] == [second]

    with_journal(work)


async def both(group, *calls):
    """Run calls concurrently."""
    running = [group.cluster.loop.create_task(call) for call in calls]
    return [await task for task in running]


def test_altered_limit_reaches_all_replicas_and_refuses_steps_above_it():
    async def work(group):
        await group.append("a")
        rename = pb.AlterStep(rename_table="work")
        option = pb.AlterStep.Text(name="journal_bytes", text="400")
        assert await group.alter(rename, pb.AlterStep(option=option)) == 1
        assert {(m.info.name, m.info.limit_bytes) for m in group.journals()} == {("work", 400)}
        full = await group.step(entry("x" * 500))
        assert full.full.limit_bytes == 400
        assert full.full.bytes > 500
        assert await group.read() == [b"a"]
        await group.cluster.until(
            lambda: reported(group) == {(1, 1)}, "the reports have the new kind and version"
        )
        described = await group.describe("work")
        assert (described.state, described.tablets_altered, described.table.kind) == (
            "RUNNING",
            1,
            1,
        )

    with_journal(work)


def reported(group):
    """Return the kind and version that each replica reports."""
    reports = [p.server.tablets.reports([group.tablet])[0] for p in group.holders()]
    return {(r.kind, r.schema_version) for r in reports}


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
            at.append(await summed(group, group.leader))
        await late.start()
        for server in group.holders():
            for count, then in enumerate(at, start=1):
                assert then.rows == count
                assert await summed(group, server, then.at) == then

    with_journal(work)


async def summed(group, server, at=0):
    """Return the checksum of one replica."""
    request = reads_pb2.ChecksumRequest(tablet_id=group.tablet, at=at)
    return await group.ask(server, methods.CHECKSUM, request)


def test_journal_keeps_its_content_through_flush_move_and_restart():
    async def work(group):
        await group.append(*(f"{n}" * 500 for n in range(200)))
        held = await group.read()
        old, new = group.holders()[1], group.empty_servers()[0]
        await group.do("move", group.uuid(old), group.uuid(new))
        assert old not in group.holders()
        assert new in group.holders()
        assert any(m.flush_point.op.index > 100 for m in group.journals()), (
            "the journal was flushed"
        )
        for server in group.holders():
            server.kill()
            await server.start()
        await group.cluster.until(
            lambda: group.cluster.leader_of(group.tablet) is not None,
            "the journal has a leader",
            60,
        )
        assert await group.read() == held
        sums, problems = await group.compare()
        assert problems == []
        assert [s.rows for s in sums] == [200] * 3
        refusal = await refused(summed(group, group.leader, 1))
        assert refusal.code == "HISTORY_GONE"
        assert "the content of the journal 'ops' at 1 is not known any more" in refusal.message

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


def test_requests_for_the_wrong_kind_are_refused_by_name():
    async def work(group):
        name, tablet = "ops", group.tablet
        table = await group.cluster.create_table(group.core, "t")
        rows = table.tablets[0].id
        leader = group.leader
        says = f"tablet {tablet} belongs to the journal '{name}', and the request is for a table"
        token = pb.ScanToken(tablet_id=tablet, all_columns=True)
        split = reads_pb2.SplitKeyRangeRequest(token=token, split_bytes=1)
        refusal = await refused(group.ask(leader, methods.SPLIT_KEY_RANGE, split))
        assert isinstance(refusal, InvalidArgument)
        assert says in refusal.message
        hold = pb.HoldHistoryRequest(tablet_ids=[tablet], name="h", at=1, ttl_ms=1000)
        (held,) = (await group.ask(leader, methods.HOLD_HISTORY, hold)).results
        assert says in held.error.message
        assert says in (await scanned(group, token)).message
        where = group.cluster.leader_of(rows)
        reverse = f"tablet {rows} belongs to the table 't', and the request is for a journal"
        for method, request in (
            (methods.JOURNAL_STEP, jb.JournalStepRequest(
                tablet_id=rows, changes=[entry("a")], client_id=b"j" * 16, sequence=1,
                first_outstanding=1)),
            (methods.JOURNAL_READ, jb.JournalReadRequest(tablet_id=rows, key="k")),
        ):  # fmt: skip
            refusal = await refused(group.ask(where, method, request))
            assert isinstance(refusal, InvalidArgument)
            assert reverse in refusal.message
        assert reverse in (await refused(group.tail(0, where, tablet=rows))).message
        opened = await refused(group.on(group.core.open_table, name))
        assert opened.message == (
            "'ops' is a journal, not a table; open it with client.journal('ops'), or use the verbs of: "
            "nyala journal"
        )
        opened = await refused(group.describe("t"))
        assert opened.message == (
            "'t' is a table, not a journal; open it with client.table('t'), or use the verbs of: nyala table"
        )
        dropped = await refused(group.on(group.core.ddl.drop_table, name))
        assert (
            "drop it with client.drop_journal('ops'), or: nyala journal drop ops" in dropped.message
        )
        taken = await refused(group.cluster.create_table(group.core, name))
        assert taken.code == "ALREADY_PRESENT"
        assert "a journal 'ops' exists already" in taken.message
        assert [t.name for t in await group.on(group.core.tables)] == ["t"]

    with_journal(work)


async def scanned(group, token):
    """Return the refusal of a scan."""
    ticket = flight_pb2.Ticket(ticket=token.SerializeToString())

    async def call():
        async for _ in group.core.env.rpc.stream(group.leader.address, methods.DO_GET, ticket):
            raise AssertionError("it was scanned")

    return await refused(group.on(call))


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_appends_continue_while_server_is_dead(victim):
    async def work(group):
        (first,) = await group.append("a")
        old = group.holders()[victim == "follower"]
        old.kill()
        await group.cluster.until(
            lambda: group.cluster.leader_of(group.tablet) not in (None, old), "another leads", 60
        )
        (second,) = await group.append("b")
        assert second > first
        await old.start()
        await group.cluster.until(lambda: len(group.holders()) == 3, "all three replicas are back")
        assert await group.read() == [b"a", b"b"]

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


def test_read_returns_last_id_and_time():
    async def work(group):
        done = await group.step(set_key("k", "v"))
        request = jb.JournalReadRequest(tablet_id=group.tablet, key="k")
        answer = await group.ask(group.leader, methods.JOURNAL_READ, request)
        assert answer.last == done.done.ids[0]
        assert answer.at >= done.timestamp

    with_journal(work)


def test_ended_tails_are_not_told_of_progress():
    async def work(group):
        (first,) = await group.append("a")
        await group.tail(first, group.leader, wait_ms=10)
        before = events()
        for _ in range(20):
            await group.tail(first, group.leader, wait_ms=10)
        assert events() < before + 10

    def events() -> int:
        gc.collect()
        return sum(isinstance(one, asyncio.Event) for one in gc.get_objects())

    with_journal(work)


def test_number_of_waiting_tails_is_limited(monkeypatch):
    monkeypatch.setattr(service, "MAX_WAITING", 2)

    async def work(group):
        (first,) = await group.append("a")
        for _ in range(2):  # again when the first ones have ended
            found = await asyncio.gather(
                *(group.tail(first, group.leader, wait_ms=200) for _ in range(3)),
                return_exceptions=True,
            )
            assert [type(f) for f in found if isinstance(f, Exception)] == [Throttled]

    with_journal(work)


def test_requests_with_wrong_header_or_size_are_refused():
    async def work(group):
        request = jb.JournalStepRequest(
            tablet_id=group.tablet, changes=[entry("a")], client_id=b"c" * 16, sequence=3
        )
        request.first_outstanding = 4
        refusal = await refused(group.ask(group.leader, methods.JOURNAL_STEP, request))
        assert isinstance(refusal, InvalidArgument)
        assert "first_outstanding 4 is above sequence 3" in refusal.message
        refusal = await refused(group.step(*large))
        assert isinstance(refusal, TooLarge)
        assert "write_max_bytes" in refusal.message
        assert await group.read() == []

    large = [entry("x" * 900_000)] * 3
    with_journal(work, write_max_bytes=2 * MIB)
