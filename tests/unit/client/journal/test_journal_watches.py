"""Watches of a client: keys, deletions, and the point from which what is held is the state."""

import asyncio
import random
from typing import Any

import pytest

from nyala.client.journal.items import Key, Rebased, Synced
from nyala.client.journal.pages import items_of
from nyala.journal import reads, steps
from nyala.journal.state import JournalState
from nyala.tserver.journals import answers
from nyala.wire.proto import journal_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.unit.client.support.journal_scenarios import Scenario, scenario, set_key, taken
from tests.unit.client.support.journal_servers import ADDRESSES, JournalServers


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
