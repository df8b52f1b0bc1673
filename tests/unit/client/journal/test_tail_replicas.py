"""Replicas that a tail asks: silent, cut off, deposed, removed and moved ones."""

import asyncio
from contextlib import aclosing

import pytest

from nyala.client.journal.items import Entry
from nyala.client.journal.pages import items_of
from nyala.common.errors import LogGone, NotLeader, TimedOut, Unavailable
from nyala.wire.proto import journal_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.unit.client.support.journal_scenarios import Scenario, delete_log, scenario, tail
from tests.unit.client.support.journal_servers import (
    ADDRESSES,
    Fault,
    JournalServers,
    Member,
    answered,
)


@scenario
async def test_tail_continues_through_errors_and_leader_changes(s):
    events = tail(s)
    ids = []
    for number in range(6):
        s.servers.tail_faults = [Fault(Unavailable("connection lost"))] * number
        old = s.servers.leader
        s.servers.members[old].down = number % 2 == 1
        if s.servers.members[old].down:
            s.servers.lead(ADDRESSES[number % 3 - 1])
            s.servers.members[s.servers.leader].down = False
        ids.append(await s.append("a", b"%d" % number))
        assert await anext(events) == Entry(ids[-1], b"%d" % number)
        s.servers.members[old].down = False


@scenario
async def test_tail_leaves_silent_server(s):
    events = tail(s)
    first = await s.append("a", b"1")
    assert (await anext(events)).id == first
    s.servers.members[ADDRESSES[0]].silent = True
    began = s.loop.now_us()
    second = await s.append("a", b"2")
    assert (await anext(events)).id == second
    assert s.loop.now_us() - began < 6_000_000


@scenario
async def test_tail_continues_when_its_replica_is_cut_off(s):
    events = tail(s)
    first = await s.append("a", b"1")
    assert (await anext(events)).id == first
    waiting = asyncio.ensure_future(anext(events))
    s.servers.members[ADDRESSES[0]].frozen = True  # the masters still list it as leader
    s.servers.lead(ADDRESSES[1])
    second = await s.append("a", b"2")
    s.journal.tablet.leader = ADDRESSES[0]
    async with asyncio.timeout(10):
        assert (await waiting).id == second


@scenario
async def test_unanswered_tail_times_out_and_can_be_resumed(s):
    first = await s.append("a", b"1")
    events = tail(s)
    assert (await anext(events)).id == first
    for member in s.servers.members.values():
        member.down = True
    with pytest.raises(TimedOut, match="from the last id"):
        await anext(events)
    for member in s.servers.members.values():
        member.down = False
    second = await s.append("a", b"2")
    assert await anext(tail(s, after=first)) == Entry(second, b"2")


@scenario
async def test_tail_survives_follower_that_lacks_the_log(s):
    s.servers.members[ADDRESSES[1]].frozen = True
    first = await s.append("a", b"1")
    events = tail(s)
    assert (await anext(events)).id == first
    s.servers.members[ADDRESSES[0]].down = True
    s.journal.tablet.leader = None
    s.servers.known_leader = ADDRESSES[1]  # wrongly
    s.servers.lead(ADDRESSES[2])
    second = await s.append("a", b"2")
    s.journal.tablet.leader = ADDRESSES[1]
    assert await anext(events) == Entry(second, b"2")


@scenario
async def test_tail_continues_at_leader_named_by_deposed_replica(s):
    first = await s.append("a", b"1")
    events = tail(s)
    assert (await anext(events)).id == first
    s.servers.lead(ADDRESSES[2])
    deposed = answered(NotLeader("deposed", {"leader": "2", "address": ADDRESSES[2]}))
    s.servers.tail_answers = [deposed]
    s.servers.asked.clear()
    waiting = asyncio.ensure_future(anext(events))
    await s.loop.delay(1_000_000)
    asked = [a for a, request in s.servers.asked if isinstance(request, pb.JournalTailRequest)]
    assert asked == [ADDRESSES[0], ADDRESSES[2]]
    assert s.journal.tablet.leader == ADDRESSES[2]
    second = await s.append("a", b"2")
    assert await waiting == Entry(second, b"2")


@scenario
async def test_tail_resumed_at_replica_without_the_log_is_not_rebased(s):
    for member in ADDRESSES[1:]:
        s.servers.members[member].frozen = True
    first = await s.append("a", b"1")
    s.servers.members[ADDRESSES[0]].down = True
    events = tail(s, after=first)
    waiting = asyncio.ensure_future(anext(events))
    await s.loop.delay(5_000_000)
    assert not waiting.done()
    s.servers.lead(ADDRESSES[1])
    second = await s.append("a", b"2")
    assert await waiting == Entry(second, b"2")


@scenario
async def test_tail_asks_each_other_replica_in_turn(s):
    events = tail(s)
    first = await s.append("a", b"1")
    assert (await anext(events)).id == first
    for cut_off in ADDRESSES[:2]:
        s.servers.members[cut_off].frozen = True
    s.servers.lead(ADDRESSES[2])
    second = await s.append("a", b"2")
    s.journal.tablet.leader = ADDRESSES[0]
    async with asyncio.timeout(15):
        assert (await anext(events)).id == second


@pytest.mark.parametrize("leader", ADDRESSES[1:])
def test_reader_that_resumes_often_asks_each_other_replica(leader):
    """Of two other replicas one lags too; each tail ends after one of them was asked."""

    async def main(loop: SimLoop) -> None:
        s = await Scenario(loop, JournalServers(loop)).open()
        first = await s.append("a", b"1")
        for member in s.servers.members.values():
            member.frozen = True
        s.servers.lead(leader)
        second = await s.append("a", b"2")
        for _ in range(20):
            s.journal.tablet.leader = ADDRESSES[0]
            s.journal.seen = 0  # as of another client, which has not seen the second entry
            events = s.core.tail(s.core.log(s.journal, "a"), first)
            try:
                async with asyncio.timeout(3), aclosing(events):
                    found = await anext(events)
                    assert [e.id for e in found if isinstance(e, Entry)] == [second]
                    return
            except TimeoutError:
                continue
        raise AssertionError("the other replica was never asked")

    run(main, max_time_s=300)


@scenario
async def test_tail_at_removed_replica_finds_the_others(s):
    """It still answers that nothing changed; those that the client knows beside it are gone."""
    first = await s.append("a", b"1")
    events = tail(s, after=first)
    s.servers.members[ADDRESSES[0]].frozen = True
    s.servers.lead(ADDRESSES[1])
    s.servers.known_leader = ADDRESSES[1]
    second = await s.append("a", b"2")
    gone = "127.0.0.1:9"
    s.servers.members[gone] = Member(1 << 30, down=True)
    s.journal.tablet.replicas = (("0", ADDRESSES[0]), ("9", gone))
    s.journal.tablet.leader = ADDRESSES[0]
    async with asyncio.timeout(10):
        assert (await anext(events)).id == second


@scenario
async def test_tail_finds_the_group_although_two_removed_replicas_name_each_other(s):
    first = await s.append("a", b"1")
    s.journal.tablet.leader = ADDRESSES[1]
    s.servers.tail_answers = [
        answered(NotLeader("removed", {"address": ADDRESSES[n]})) for n in (2, 1)
    ]
    s.servers.asked.clear()
    assert await anext(tail(s)) == Entry(first, b"1")
    assert [a for a, _ in s.servers.asked] == [ADDRESSES[1], ADDRESSES[2], ADDRESSES[0]]


@scenario
async def test_log_that_was_seen_to_be_deleted_is_not_shown_by_a_removed_replica(s):
    """It does not know of the deletion, and its client asks it first."""
    first = await s.append("a", b"1")
    s.servers.members[ADDRESSES[0]].frozen = True
    s.servers.lead(ADDRESSES[1])
    log = s.core.log(s.journal, "a")
    events = items_of(s.core.tail(log, 0))
    assert (await anext(events)).id == first
    await s.step(delete_log("a"))
    s.journal.seen = first  # as of another client
    with pytest.raises(LogGone):
        await anext(events)
    s.servers.known_leader = s.journal.tablet.leader = None
    waiting = asyncio.ensure_future(anext(tail(s)))
    again = await s.append("a", b"2")
    assert await waiting == Entry(again, b"2")


@scenario
async def test_tail_begins_at_any_state_if_no_replica_has_what_the_client_has_seen(s):
    """After a recovery from the loss of a majority the last changes may be lost."""
    first = await s.append("a", b"1")
    s.journal.saw(first + 1_000)
    assert await anext(tail(s)) == Entry(first, b"1")


@scenario
async def test_tail_finds_group_whose_known_replicas_were_all_removed(s):
    """Each of them still answers that nothing changed."""
    first = await s.append("a", b"1")
    s.journal.seen = 0  # as of another client
    events = tail(s, after=first)
    removed = ("127.0.0.1:7", "127.0.0.1:8")
    for address in removed:
        s.servers.members[address] = Member(1 << 30, frozen=True)
    second = await s.append("a", b"2")
    s.journal.tablet.replicas = (("7", removed[0]), ("8", removed[1]))
    s.journal.tablet.leader = removed[0]
    async with asyncio.timeout(60):
        assert (await anext(events)).id == second


@scenario
async def test_tail_finds_replicas_that_have_moved(s):
    first = await s.append("a", b"1")
    gone = "127.0.0.1:9"
    s.servers.members[gone] = Member(1 << 30, down=True)
    s.journal.tablet.replicas = (("9", gone),)
    s.journal.tablet.leader = None
    async with asyncio.timeout(5):
        assert (await anext(tail(s))).id == first
