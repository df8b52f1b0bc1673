"""Journals through real masters and tablet servers in virtual time: written, read, altered, moved."""

import pytest

from nyala.common.errors import InvalidArgument, TooLarge
from nyala.common.options import MIB
from nyala.wire import methods
from nyala.wire.proto import flight_pb2, reads_pb2
from nyala.wire.proto import journal_pb2 as jb
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.tserver.support.journal_group import entry, last_is, set_key, with_journal
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
        refusal = await refused(group.checksum_of(group.leader, 1))
        assert refusal.code == "HISTORY_GONE"
        assert "the content of the journal 'ops' at 1 is not known any more" in refusal.message

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


def test_read_returns_last_id_and_time():
    async def work(group):
        done = await group.step(set_key("k", "v"))
        request = jb.JournalReadRequest(tablet_id=group.tablet, key="k")
        answer = await group.ask(group.leader, methods.JOURNAL_READ, request)
        assert answer.last == done.done.ids[0]
        assert answer.at >= done.timestamp

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
