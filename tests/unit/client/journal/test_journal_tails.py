"""Tails of a client: each valid entry once and in order, under faults of the servers."""

import asyncio
import random
from typing import Any
from unittest import mock

import pytest

from nyala.client.journal.items import Entry, Invalidated, Rebased, Synced
from nyala.client.journal.pages import items_of
from nyala.common.errors import LogGone, Unavailable
from nyala.journal import reads
from nyala.journal.state import JournalState
from nyala.tserver.journals import answers
from nyala.wire.proto import journal_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.unit.client.support.journal_scenarios import (
    Scenario,
    append,
    delete_log,
    invalidate,
    scenario,
    set_key,
    tail,
    taken,
)
from tests.unit.client.support.journal_servers import ADDRESSES, Fault, JournalServers


@scenario
async def test_tail_yields_entries_and_invalidations_in_order(s):
    events = tail(s)
    first = await s.append("a", b"1")
    second = await s.append("a", b"2")
    third = await s.append("a", b"3", first)
    (fourth,) = await s.step(invalidate("a", second, 99))
    pair = await taken(events, 2)
    assert pair == [Entry(third, b"3"), Invalidated((first,), third)]
    assert [one.complete for one in pair] == [False, True], "a reader that resumes misses nothing"
    assert await anext(events) == Invalidated((second,), fourth)
    waiting = asyncio.ensure_future(anext(events))
    await s.loop.delay(30_000_000)
    assert not waiting.done()
    fifth = await s.append("a", b"5")
    assert await waiting == Entry(fifth, b"5")
    await events.aclose()


@scenario
async def test_tail_of_missing_log_waits_for_its_creation(s):
    events = tail(s)
    waiting = asyncio.ensure_future(anext(events))
    await s.loop.delay(5_000_000)
    await s.append("b", b"other")
    first = await s.append("a", b"1")
    assert await waiting == Entry(first, b"1")


@scenario
async def test_tail_starts_after_given_id(s):
    ids = [await s.append("a", b"%d" % n) for n in range(5)]
    assert [e.id for e in await taken(tail(s, after=ids[2]), 2)] == ids[3:]


@scenario
async def test_tail_with_missed_changes_is_rebased(s):
    ids = [await s.append("a", b"%d" % n) for n in range(6)]
    await s.step(invalidate("a", ids[1]))
    for member in s.servers.members.values():
        member.forget()
    events = tail(s, after=ids[3])
    assert await anext(events) == Rebased(s.servers.state.last)
    valid = [i for i in ids if i != ids[1]]
    assert [e.id for e in await taken(events, 5)] == valid
    last = await s.append("a", b"new")
    assert await anext(events) == Entry(last, b"new")


@scenario
async def test_entry_that_is_appended_before_a_rebased_tail_reads_comes_once(s):
    ids = [await s.append("a", b"%d" % n) for n in range(4)]
    for member in s.servers.members.values():
        member.forget()
    events = tail(s, after=ids[0])
    assert await anext(events) == Rebased(ids[3])
    ids += [await s.append("a", b"later"), await s.append("a", b"last")]
    assert [e.id for e in await taken(events, 6)] == ids
    ids.append(await s.append("a", b"end"))
    assert (await anext(events)).id == ids[-1]


@scenario
async def test_tail_from_start_is_not_rebased(s):
    ids = [await s.append("a", b"%d" % n) for n in range(3)]
    for member in s.servers.members.values():
        member.forget()
    assert [e.id for e in await taken(tail(s), 3)] == ids


@scenario
async def test_tail_of_deleted_log_ends_with_log_gone(s):
    events = tail(s)
    await s.append("a", b"1")
    await anext(events)
    await s.step(pb.JournalChange(delete_log="a"), append("a", b"of another"))
    with pytest.raises(LogGone):
        await anext(events)


async def _disturb(s: Scenario, rng: random.Random, done: asyncio.Event) -> None:
    """Change the log and disturb the servers."""
    valid: list[int] = []
    for number in range(60):
        removed = rng.sample(valid, min(len(valid), rng.randrange(3)))
        valid = [i for i in valid if i not in removed]
        if rng.random() < 0.75:
            valid.append(await s.append("a", b"%d" % number, *removed))
        else:
            await s.step(invalidate("a", *removed), set_key("k", b""))
        await s.loop.delay(rng.choice((0, 10_000, 3_000_000)))
        members, address = s.servers.members, rng.choice(ADDRESSES)
        match rng.randrange(7):
            case 0:
                members[address].forget()
            case 1 if address != s.servers.leader:
                members[address].frozen = not members[address].frozen
            case 2:
                s.servers.lead(address)
                members[address].down = False
            case 3 if sum(m.down for m in members.values()) == 0 and address != s.servers.leader:
                members[address].down = True
            case 4:
                for member in members.values():
                    member.down = False
            case _:
                s.servers.tail_faults = [Fault(Unavailable("lost"))] * rng.randrange(3)
    for member in s.servers.members.values():
        member.frozen = member.down = False
    s.servers.catch_up()
    await s.append("a", b"end")
    done.set()


@pytest.mark.parametrize("seed", range(12))
def test_tail_yields_each_entry_once_and_ends_with_valid_entries(
    seed: int, monkeypatch: pytest.MonkeyPatch
):
    rng = random.Random(seed)
    monkeypatch.setattr(reads, "PAGE_ITEMS", rng.choice((1, 2, 3, 100)))

    async def main(loop: SimLoop) -> None:
        s = await Scenario(loop, JournalServers(loop)).open()
        done = asyncio.Event()
        disturbance = asyncio.ensure_future(_disturb(s, rng, done))
        held: dict[int, bytes] = {}
        ever: set[int] = set()
        last = 0
        async for event in tail(s):
            if isinstance(event, Rebased):
                held, ever, last = {}, set(), 0
            elif isinstance(event, Entry):
                assert event.id > last, f"{event} after {last}"
                assert event.id not in ever
                held[event.id] = event.data
                ever.add(event.id)
                last = event.id
                if event.data == b"end":
                    break
            else:
                assert event.id >= last
                last = event.id
                for one in event.ids:
                    held.pop(one, None)
            if rng.random() < 0.2:
                await loop.delay(rng.randrange(2_000_000))
        await disturbance
        assert done.is_set()
        assert held == dict(s.servers.state.logs["a"].entries.read(0, 1 << 63))

    run(main, max_time_s=3000)


@scenario
async def test_resumed_tail_of_log_that_was_deleted_and_created_again_is_rebased(s):
    first = await s.append("a", b"of the old log")
    await s.step(delete_log("a"))
    second = await s.append("a", b"of the new log")
    third = await s.append("a", b"too")
    events = tail(s, after=first)
    assert await taken(events, 3) == [
        Rebased(third),
        Entry(second, b"of the new log"),
        Entry(third, b"too"),
    ]
    fourth = await s.append("a", b"next")
    assert await anext(events) == Entry(fourth, b"next")


@scenario
async def test_resumed_tail_of_deleted_log_is_rebased_once(s):
    first = await s.append("a", b"of the old log")
    (deleted,) = await s.step(delete_log("a"))
    events = tail(s, after=first)
    assert await anext(events) == Rebased(deleted)
    waiting = asyncio.ensure_future(anext(events))
    await s.loop.delay(30_000_000)
    assert not waiting.done()
    second = await s.append("a", b"of the new log")
    assert await waiting == Entry(second, b"of the new log")


@scenario
async def test_position_of_tail_does_not_count_as_seen(s):
    await s.append("a", b"1")
    seen = s.journal.seen
    watching = items_of(s.core.watch(s.journal, "", 1 << 63))
    assert await anext(watching) == Synced(1 << 63)
    for events in (tail(s, after=(1 << 64) - 1), watching):
        waiting = asyncio.ensure_future(anext(events))
        await s.loop.delay(5_000_000)
        assert not waiting.done()
        assert s.journal.seen == seen
        waiting.cancel()


@scenario
async def test_ended_tail_leaves_no_stream_open(s):
    events = s.core.tail(s.core.log(s.journal, "a"))
    await s.append("a", b"1")
    await anext(events)
    waiting = asyncio.ensure_future(anext(events))
    await s.loop.delay(10_000_000)
    streams = [stream for stream in s.servers.streams if not stream.over]
    assert streams
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await events.aclose()
    assert all(stream.over for stream in streams)


@scenario
async def test_answer_to_another_request_is_ignored(s):
    await s.append("a", b"1")
    events = tail(s)
    assert (await anext(events)).data == b"1"
    waiting = asyncio.ensure_future(anext(events))
    await s.loop.delay(1_000_000)
    for stream in s.servers.streams:
        stray = pb.JournalTailResponse(request=1, through=1 << 40)
        stray.events.add(entry=pb.JournalEntry(id=1 << 40, data=b"stray"))
        stream.answer(stray)
    second = await s.append("a", b"2")
    assert await waiting == Entry(second, b"2")


@scenario
async def test_repeated_changes_are_not_told_again(s):
    whole = answers.tail

    def from_the_start(state: JournalState, request: Any, after: int) -> Any:
        return whole(state, request, 0)

    with mock.patch.object(answers, "tail", from_the_start):
        entries, keys = tail(s), items_of(s.core.watch(s.journal, ""))
        assert await anext(keys) == Synced(0)
        for number in range(3):
            data = b"%d" % number
            entry, _ = await s.step(append("a", data), set_key(data.decode(), data))
            assert await anext(entries) == Entry(entry, data)
            assert (await anext(keys)).value == data
