"""Reads of a client: pages, other leaders, followers that are behind, deleted logs."""

import asyncio
from functools import partial
from unittest import mock

import pytest

from nyala.client.journal.pages import (
    LogReader,
    content_pages,
    items_of,
    key_pages,
    read_key,
    read_logs,
)
from nyala.client.journal.verify import verify
from nyala.common.errors import InvalidArgument, LogGone, NotFound, TimedOut, Unavailable
from nyala.journal import reads, steps
from nyala.journal.keys import KeyValue
from nyala.journal.state import JournalState
from nyala.tserver.journals import answers
from nyala.wire.proto import journal_pb2 as pb
from tests.unit.client.support.journal_scenarios import Scenario, invalidate, scenario, set_key
from tests.unit.client.support.journal_servers import ADDRESSES, FIRST_STAMP, Fault


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "PAGE_ITEMS", 2)


@pytest.mark.usefixtures("small_pages")
def test_pages_of_log_end_at_its_last_id_as_of_first_page():
    @scenario
    async def work(s: Scenario) -> None:
        ids = [await s.append("a", b"%d" % n) for n in range(7)]
        entries = items_of(s.core.log(s.journal, "a").entry_pages())
        found = [(await anext(entries)).id]
        late = await s.append("a", b"late")
        await s.step(invalidate("a", ids[5]))
        found += [e.id async for e in entries]
        assert found == [i for i in ids if i != ids[5]]
        assert [i for i, _ in await s.read("a", after=ids[4])] == [ids[6], late]
        assert [i for i, _ in await s.read("a", limit=3)] == ids[:3]
        assert [i for i, _ in await s.read("a", limit=2)] == ids[:2]

    work()


@pytest.mark.usefixtures("small_pages")
def test_keys_and_logs_are_read_in_order_over_several_pages():
    @scenario
    async def work(s: Scenario) -> None:
        names = [f"k{n}" for n in range(5)]
        for name in names:
            await s.step(set_key(name, name.encode()))
            await s.append(name, b"x")
        keys = [k async for k in items_of(key_pages(s.core.reads, s.journal, "k"))]
        assert [(k.name, k.value) for k in keys] == [(n, n.encode()) for n in names]
        logs = await read_logs(s.core.reads, s.journal)
        assert [(g.name, g.entries, g.data_bytes) for g in logs] == [(n, 1, 1) for n in names]

    work()


@scenario
async def test_missing_log_and_key_read_as_empty(s):
    assert await s.read("a") == []
    assert await s.core.log(s.journal, "a").last_id() == 0
    assert await read_key(s.core.reads, s.journal, "k") is None


@scenario
async def test_last_id_includes_bare_invalidations(s):
    first = await s.append("a", b"1")
    log = s.core.log(s.journal, "a")
    assert await log.last_id() == first
    (second,) = await s.step(invalidate("a", 12345))
    assert await log.last_id() == second > first


@scenario
async def test_read_follows_new_leader(s):
    await s.append("a", b"1")
    s.servers.members[ADDRESSES[0]].down = True
    s.servers.lead(ADDRESSES[1])
    assert len(await s.read("a")) == 1
    s.servers.read_faults = [Fault(Unavailable("connection lost"), after=True)]
    assert len(await s.read("a")) == 1


@scenario
async def test_unanswered_read_times_out(s):
    for member in s.servers.members.values():
        member.down = True
    with pytest.raises(TimedOut, match="max_age_ms"):
        await s.read("a")


@scenario
async def test_stale_read_includes_everything_that_client_has_seen(s):
    await s.append("a", b"1")
    for address in ADDRESSES[1:]:
        s.servers.members[address].frozen = True
    last = await s.append("a", b"2")
    for _ in range(8):
        found = await s.read("a", max_age_ms=60_000)
        assert [data for _, data in found] == [b"1", b"2"]
    assert s.journal.seen == last
    asked = {a for a, r in s.servers.asked if isinstance(r, pb.JournalReadRequest)}
    assert len(asked) > 1, "followers were queried too"


@scenario
async def test_stale_read_is_served_by_followers_without_leader(s):
    await s.append("a", b"1")
    s.servers.members[s.servers.leader].down = True
    for _ in range(4):
        assert len(await s.read("a", max_age_ms=60_000)) == 1


@scenario
async def test_stale_read_falls_back_to_leader_if_no_replica_is_fresh_enough(s):
    await s.append("a", b"1")
    s.journal.saw(1 << 60)  # of changes that an unsafe recovery lost
    assert len(await s.read("a", max_age_ms=60_000)) == 1


@scenario
async def test_reader_of_deleted_log_gets_log_gone_even_if_another_has_its_name(s):
    await s.append("a", b"1")
    log = s.core.log(s.journal, "a")
    assert [e.data async for e in items_of(log.entry_pages())] == [b"1"]
    await s.step(pb.JournalChange(delete_log="a"))
    with pytest.raises(LogGone):
        await log.last_id()
    await s.append("a", b"2")
    with pytest.raises(LogGone, match="another one"):
        await log.last_id()
    assert [data for _, data in await s.read("a")] == [b"2"]


@scenario
async def test_replica_that_reports_a_deleted_log_is_known_as_leader(s):
    """Else each tail of the log asks a removed replica first, which still has the log, without end."""
    await s.append("a", b"1")
    log = s.core.log(s.journal, "a")
    await log.last_id()
    await s.step(pb.JournalChange(delete_log="a"))
    s.journal.tablet.leader = None
    with pytest.raises(LogGone):
        await log.last_id()
    assert s.journal.tablet.leader == s.servers.leader


@scenario
async def test_error_for_missing_journal_lists_existing_ones(s):
    with pytest.raises(NotFound, match="the journals are: j"):
        await s.core.open("nobody")


def test_entry_timestamp_is_derived_from_its_id():
    from nyala.client.journal.items import Entry, Key

    stamp = 1_767_225_600_000_000 << 12
    assert Entry(stamp + 3, b"").timestamp.isoformat() == "2026-01-01T00:00:00+00:00"
    assert Key("k", b"", stamp).timestamp == Entry(stamp, b"").timestamp


def test_step_builder_refuses_invalid_conditions_and_data():
    from nyala.client.journal.builder import StepBuilder

    sent: list[object] = []
    step = StepBuilder(lambda conditions, changes: sent.append(changes) or None, "j")  # type: ignore[return-value,arg-type,func-returns-value]
    for wrong in ({"log": "a"}, {"log": "a", "last": 1, "version": 2}, {"key": "k"}, {"last": 3}):
        with pytest.raises(InvalidArgument, match="a condition is"):
            step.require(**wrong)
    with pytest.raises(InvalidArgument, match="no id"):
        step.require("a", last=-1)
    with pytest.raises(InvalidArgument, match="encode"):
        step.append("a", "text")
    with pytest.raises(InvalidArgument, match="no id"):
        step.append("a", b"", [True])
    with pytest.raises(InvalidArgument, match="give ids"):
        step.invalidate("a", 3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="UTF-8"):
        step.set("\ud800", b"")
    with pytest.raises(InvalidArgument, match="after the with block"):
        _ = step.ids
    step.append("a", b"")
    with pytest.raises(ZeroDivisionError), step:
        _ = 1 // 0
    assert sent == []
    with pytest.raises(InvalidArgument, match="was sent"):
        step.append("a", b"")


@scenario
async def test_verify_reads_and_compares_all_replicas(s):
    first = await s.append("a", b"1")
    await s.append("a", b"2", first)
    await s.step(set_key("k", b"v"))
    core, env = s.core, s.client.env
    found = await verify(env, core, s.journal, 3)
    assert {(r.logs, r.entries, r.keys, r.problem) for r in found} == {(1, 1, 1, "")}
    assert len({(r.last, r.digest) for r in found}) == 1
    rotten = s.servers.members[ADDRESSES[2]].state
    rotten.keys.put(KeyValue("k", rotten.last, b"of no other"))
    found = await verify(env, core, s.journal, 3)
    assert len({r.digest for r in found if not r.problem}) == 2
    s.servers.members[ADDRESSES[1]].down = True
    found = await verify(env, core, s.journal, 2)
    assert [r.address for r in found if "refused" in r.problem] == [ADDRESSES[1]]


@scenario
async def test_verify_restarts_while_journal_changes(s):
    await s.append("a", b"1")
    verifying = asyncio.ensure_future(verify(s.client.env, s.core, s.journal, 50))
    for number in range(20):
        await s.append("a", b"%d" % number)
    found = await verifying
    assert {r.problem for r in found} == {""}
    assert {r.entries for r in found} == {21}


@scenario
async def test_read_of_followers_includes_what_an_earlier_read_returned(s):
    s.servers.execute(steps.Step([], [steps.Append("a", b"of another client")]))
    await s.read("a")
    await s.read("a", max_age_ms=1000)
    assert s.servers.asked[-1][1].least == s.servers.state.last


@scenario
async def test_requests_carry_the_highest_time_seen(s):
    await s.read("a")
    s.servers.asked.clear()
    await s.append("a", b"1")
    assert s.servers.asked[-1][1].propagated_time == FIRST_STAMP


def test_log_reader_keeps_the_log_that_it_found_first():
    reader = LogReader(None, None, "a")  # type: ignore[arg-type]
    reader.found(0)
    reader.found(5)
    for later in (0, 9):
        reader.found(later)
        assert reader.created == 5


@scenario
async def test_error_for_missing_id_is_the_masters(s):
    s.servers.dropped = True
    with pytest.raises(NotFound, match="no such journal"):
        await s.core.locations.open("", 1_000, journal_id="b" * 32)


def swap_entries(response: pb.JournalReadResponse) -> None:
    entries = list(response.content.logs[0].entries)
    del response.content.logs[0].entries[:]
    response.content.logs[0].entries.extend(reversed(entries))


def lose_entry(response: pb.JournalReadResponse) -> None:
    del response.content.logs[0].entries[1:]


def change_last_entry(response: pb.JournalReadResponse) -> None:
    for entry in response.content.logs[0].entries[1:]:
        entry.id = response.last + 1


def swap_logs(response: pb.JournalReadResponse) -> None:
    logs = list(response.content.logs)
    del response.content.logs[:]
    response.content.logs.extend(reversed(logs))


def swap_keys(response: pb.JournalReadResponse) -> None:
    keys = list(response.keys.keys)
    del response.keys.keys[:]
    response.keys.keys.extend(reversed(keys))


def change_version(response: pb.JournalReadResponse) -> None:
    for key in response.keys.keys[:1]:
        key.version = response.last + 1


@pytest.mark.parametrize(
    ("damaged_part", "damage", "problem"),
    [
        ("content", swap_entries, "the id of entry 1000 of log 'a'"),
        ("content", change_last_entry, "the id of entry 1041 of log 'a'"),
        ("content", lose_entry, "the number of entries of log 'a'"),
        ("content", swap_logs, "the order of log 'a'"),
        ("keys", swap_keys, "the order of key 'k1'"),
        ("keys", change_version, "the version of key 'k1'"),
    ],
)
def test_verify_finds_wrong_ids_order_and_counts(damaged_part, damage, problem):
    whole = answers.read

    def damaged(state: JournalState, request: pb.JournalReadRequest) -> pb.JournalReadResponse:
        response = whole(state, request)
        if request.WhichOneof("what") == damaged_part:
            damage(response)
        return response

    @scenario
    async def check(s):
        for number in (1, 2):
            await s.append("a", b"%d" % number)
            await s.step(set_key(f"k{number}", b"v"))
        await s.append("b", b"3")
        with mock.patch.object(answers, "read", damaged):
            found = await verify(s.client.env, s.core, s.journal, 1)
        assert {r.problem for r in found} == {f"{problem} is wrong"}

    check()


@scenario
async def test_verify_reports_change_during_reading(s):
    await s.append("a", b"1")
    whole = answers.read

    def changing(state: JournalState, request: pb.JournalReadRequest) -> pb.JournalReadResponse:
        if request.WhichOneof("what") == "keys":
            s.servers.execute(steps.Step([], [steps.Append("a", b"of another client")]))
        return whole(state, request)

    with mock.patch.object(answers, "read", changing):
        found = await verify(s.client.env, s.core, s.journal, 1)
    assert {r.problem for r in found} == {"the journal changed while it was read"}


@scenario
async def test_verify_reads_many_logs_with_few_requests(s):
    for number in range(400):
        s.servers.execute(steps.Step([], [steps.Append(f"log-{number:03}", b"1")] * 2))
    s.servers.asked.clear()
    found = await verify(s.client.env, s.core, s.journal, 1)
    assert [(r.logs, r.entries, r.problem) for r in found] == [(400, 800, "")] * 3
    assert len({r.digest for r in found}) == 1
    assert len(s.servers.asked) < 10


@scenario
async def test_pages_of_content_have_each_entry_once_in_order(s):
    expected: list[tuple[str, int]] = []
    for number in range(9):
        done = s.servers.execute(
            steps.Step([], [steps.Append(f"log-{number}", b"1")] * (number % 4 + 1))
        )
        assert isinstance(done, steps.Done)
        expected += [(f"log-{number}", i) for i in done.ids]
    s.servers.execute(steps.Step([], [steps.Invalidate("log-4", tuple(i for _, i in expected))]))
    expected = [e for e in expected if e[0] != "log-4"]
    for limit in (1, 2, 3, 100):
        with mock.patch.object(reads, "PAGE_ITEMS", limit):
            pages = [p async for p in content_pages(partial(s.core.reads.read, s.journal))]
        found = [(c.log.name, e.id) for page in pages for c in page for e in c.entries]
        assert found == expected
        assert {c.log.name for page in pages for c in page} == {f"log-{n}" for n in range(9)}


def test_reads_and_steps_find_the_leader_although_two_removed_replicas_name_each_other():
    @scenario
    async def work(s: Scenario) -> None:
        first = await s.append("a", b"1")
        s.servers.lead(ADDRESSES[2])
        s.servers.named = {ADDRESSES[0]: ADDRESSES[1], ADDRESSES[1]: None}
        s.servers.known_leader = ADDRESSES[2]
        for call in (s.read("a"), s.append("a", b"2")):
            s.journal.tablet.leader = ADDRESSES[0]
            s.servers.asked.clear()
            await call
            asked = [a for a, _ in s.servers.asked]
            assert asked[:3] == [ADDRESSES[0], ADDRESSES[1], ADDRESSES[0]]
            assert asked[3:] == [ADDRESSES[2]], "the name of one that was asked is not followed"
        assert (await s.read("a"))[0] == (first, b"1")

    work()
