"""Tails and watches of a client: each valid entry once and in order, under faults of the servers."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any
from unittest import mock

import pytest

from nyala.client.journal.items import Entry, Invalidated, Key, Rebased, Synced
from nyala.client.journal.pages import items_of
from nyala.common.errors import LogGone, NotLeader, TimedOut, Unavailable
from nyala.journal import reads, steps
from nyala.journal.state import JournalState
from nyala.tserver.journals import answers
from nyala.wire.proto import journal_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.unit.client.support.journal_servers import (
    ADDRESSES,
    Fault,
    JournalServers,
    Member,
    Scenario,
    answered,
    append,
    invalidate,
    set_key,
    taken,
)


def scenario(fn: Callable[[Scenario], Awaitable[None]]) -> Callable[[], None]:
    def wrapped() -> None:
        async def main(loop: SimLoop) -> None:
            await fn(await Scenario(loop, JournalServers(loop)).open())

        run(main, max_time_s=300)

    wrapped.__name__ = fn.__name__
    return wrapped


def tail(s: Scenario, log: str = "a", after: int = 0) -> Any:
    return items_of(s.core.tail(s.core.log(s.journal, log), after))


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
async def test_watch_yields_keys_and_deletions(s):
    (before,) = await s.step(set_key("k/1", b"0"))
    changes = items_of(s.core.watch(s.journal, "k/"))
    assert await taken(changes, 2) == [Key("k/1", b"0", before), Synced(before)]
    (one, two) = await s.step(set_key("k/1", b"a"), set_key("z", b"x"))
    assert await anext(changes) == Key("k/1", b"a", one)
    (three,) = await s.step(pb.JournalChange(delete_key="k/1"))
    assert await anext(changes) == Key("k/1", None, three)
    assert one < two < three
    for member in s.servers.members.values():
        member.forget()
    (four,) = await s.step(set_key("k/2", b"b"))
    assert await anext(changes) == Key("k/2", b"b", four)
    s.servers.execute(steps.Step([], [steps.SetKey("k/2", b"c")]))
    for member in s.servers.members.values():
        member.forget()  # before the watch has asked again
    four = s.servers.state.last
    assert await taken(changes, 3) == [Rebased(four), Key("k/2", b"c", four), Synced(four)]
    resumed = items_of(s.core.watch(s.journal, "k/", one))
    assert await taken(resumed, 3) == [Rebased(four), Key("k/2", b"c", four), Synced(four)]


@scenario
async def test_watch_yields_key_read_ahead_of_rebase_once(s):
    await s.step(set_key("k", b"1"))
    for member in s.servers.members.values():
        member.forget()
        member.frozen = member is not s.servers.members[ADDRESSES[0]]
    s.servers.known_leader = ADDRESSES[1]
    (two,) = await s.step(set_key("k", b"2"))
    s.journal.tablet.leader = ADDRESSES[1]  # a follower, which knows the first value only
    s.journal.seen = 0  # as of another client
    changes = items_of(s.core.watch(s.journal, "k"))
    assert await anext(changes) == Key("k", b"2", two)
    waiting = asyncio.ensure_future(taken(changes, 2))
    await s.loop.delay(1_000_000)
    s.servers.members[ADDRESSES[1]].frozen = False
    s.servers.catch_up()
    await s.loop.delay(1_000_000)
    (three,) = await s.step(set_key("k", b"3"))
    assert await waiting == [Synced(two), Key("k", b"3", three)]


@scenario
async def test_watch_without_keys_is_synced_at_once(s):
    first = await s.append("a", b"1")
    began = s.loop.now_us()
    assert await anext(items_of(s.core.watch(s.journal, "k"))) == Synced(first)
    assert s.loop.now_us() - began < 1_000_000


@scenario
async def test_resumed_watch_is_synced_when_it_has_caught_up(s):
    (one,) = await s.step(set_key("k", b"1"))
    (two,) = await s.step(set_key("k/2", b"2"))
    resumed = items_of(s.core.watch(s.journal, "k", one))
    assert await taken(resumed, 2) == [Key("k/2", b"2", two), Synced(two)]


@scenario
async def test_watch_is_not_synced_by_replica_that_lags(s):
    (one,) = await s.step(set_key("k/1", b"1"))
    s.servers.members[ADDRESSES[1]].frozen = True
    (two,) = await s.step(set_key("k/2", b"2"))
    s.servers.members[ADDRESSES[0]].silent = True
    s.servers.members[ADDRESSES[2]].silent = True
    s.journal.tablet.leader = ADDRESSES[1]
    changes = items_of(s.core.watch(s.journal, "k"))
    assert await anext(changes) == Key("k/1", b"1", one)
    waiting = asyncio.ensure_future(taken(changes, 2))
    await s.loop.delay(9_000_000)
    assert not waiting.done()
    s.servers.members[ADDRESSES[1]].frozen = False
    s.servers.catch_up()
    assert await waiting == [Key("k/2", b"2", two), Synced(two)]


class Changing:
    """A journal whose keys change, and whose replicas lag, at each request for changes.

    Attributes:
        states: id of each change, and the keys after it.
        left: number of requests at which something changes.
    """

    def __init__(self, s: Scenario, rng: random.Random) -> None:
        self.states: list[tuple[int, dict[str, bytes]]] = [(0, {})]
        self.left = 0
        self._servers = s.servers
        self._tablet = s.journal.tablet
        self._rng = rng
        self._tail = answers.tail

    def change(self) -> None:
        """Execute one step."""
        made: list[steps.Change] = []
        after: list[dict[str, bytes]] = []
        for _ in range(self._rng.choice((1, 1, 6))):
            keys = dict(after[-1] if after else self.states[-1][1])
            key, value = f"k/{self._rng.randrange(6)}", b"%d" % self._rng.randrange(1000)
            if key in keys and self._rng.random() < 0.3:
                del keys[key]
                made.append(steps.DeleteKey(key))
            else:
                keys[key] = value
                made.append(steps.SetKey(key, value))
            after.append(keys)
        done = self._servers.execute(steps.Step([], made))
        assert isinstance(done, steps.Done)
        self.states.extend(zip(done.ids, after, strict=True))

    def tail(self, state: JournalState, request: Any, after: int) -> Any:
        """Answer a request for changes, before some."""
        answer = self._tail(state, request, after)
        self.left -= 1
        servers, address = self._servers, self._rng.choice(ADDRESSES)
        if self.left > 0:
            for _ in range(self._rng.randrange(3)):
                self.change()
            member = servers.members[address]
            match self._rng.randrange(8):
                case 0 if self._rng.random() < 0.2:
                    member.forget()
                case 1 | 2 if address != servers.leader:
                    member.frozen = not member.frozen
                case 3:
                    servers.lead(address)
                case 4 | 5:
                    self._tablet.leader = address  # the next request goes there
        elif not self.left:
            for member in servers.members.values():
                member.frozen = False
            servers.catch_up()
        return answer


@pytest.mark.parametrize("seed", range(24))
def test_watch_that_is_synced_holds_the_state_as_of_its_id(
    seed: int, monkeypatch: pytest.MonkeyPatch
):
    rng = random.Random(seed)
    monkeypatch.setattr(reads, "PAGE_ITEMS", rng.choice((1, 2, 3, 100)))

    async def main(loop: SimLoop) -> None:
        s = await Scenario(loop, JournalServers(loop)).open()
        changing = Changing(s, rng)
        monkeypatch.setattr(answers, "tail", changing.tail)
        for _ in range(20):
            changing.change()
        held, after = dict[str, bytes](), 0
        for _ in range(12):
            if rng.random() < 0.5:
                held, after = {}, 0  # else the watch is resumed
            changing.left = rng.choice((2, 10, 40))
            known = changing.states[-1][0]
            changes: Any = items_of(s.core.watch(s.journal, "k/", after))
            async for event in changes:
                match event:
                    case Rebased():
                        held.clear()
                    case Key(name=name, value=bytes(value)):
                        held[name] = value
                    case Key(name=name):
                        held.pop(name, None)
                    case Synced(through=after):
                        break
            await changes.aclose()
            assert after >= known
            assert held == [keys for last, keys in changing.states if last <= after][-1]

    run(main, max_time_s=600)


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


def delete_log(log: str) -> pb.JournalChange:
    return pb.JournalChange(delete_log=log)


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
