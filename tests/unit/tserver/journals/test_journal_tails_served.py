"""Tails of journals through real masters and tablet servers in virtual time: waits, elections, limits."""

import asyncio
import gc

from nyala.common.errors import NotLeader, Throttled
from nyala.journal import changes
from nyala.tserver.journals import service
from tests.unit.tserver.support.journal_group import entry, set_key, with_journal
from tests.unit.tserver.support.tablet_group import refused


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
