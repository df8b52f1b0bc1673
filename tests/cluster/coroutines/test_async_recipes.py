"""Leaders, leases, locks and counters on an event loop."""

import asyncio
from typing import Any

import pytest

from nyala import recipes as threaded
from nyala.aio import recipes
from nyala.common.errors import InvalidArgument, NotLeading, TimedOut
from tests.cluster.support.loops import on_loop, one_turn


def elections() -> int:
    """Return the number of candidates that take part in an election."""
    return sum(t.get_name().startswith("election of") for t in asyncio.all_tasks())


async def without_elections() -> None:
    """Wait until there is no candidate any more."""
    async with asyncio.timeout(120):
        while elections():
            await one_turn()


def test_leader_on_a_loop_writes_its_log_until_it_is_closed(cluster):
    async def work(client):
        journal = await client.create_journal("aio_leader")
        lost = asyncio.Event()

        async def on_lost(reason: str) -> None:
            lost.set()

        leader = recipes.AsyncLeader(
            journal, "jobs", holder="a", timeout_ms=20_000, on_lost=on_lost
        )
        with pytest.raises(InvalidArgument, match="takes no part yet"):
            await leader.wait()
        async with leader:
            epoch = await leader.wait(120)
            assert leader.leads
            assert leader.check(epoch) == await leader.confirm() == epoch
            assert await leader.append(b"first", epoch=epoch)
            async with leader.atomically(epoch) as step:
                step.set("done", b"1")
            found = await recipes.AsyncLeader.current(journal, "jobs")
            assert found is not None
            assert found.holder == "a"
            with pytest.raises(InvalidArgument, match="started before"):
                leader.start()
            await journal.log("jobs").append(b"another writer")
            async with asyncio.timeout(120):
                await lost.wait()
        with pytest.raises(NotLeading):
            leader.check(epoch)
        await without_elections()

    on_loop(cluster, work)


def test_lock_is_held_by_one_task_or_process_at_a_time(cluster):
    async def work(client):
        journal = await client.create_journal("aio_lock")
        inside = turns = 0
        lock = recipes.AsyncLock(journal, "one", holder="a", ttl_ms=20_000)

        async def turn() -> None:
            nonlocal inside, turns
            async with lock:
                inside += 1
                await one_turn()
                assert inside == 1
                assert lock.check() == lock.epoch
                inside -= 1
                turns += 1

        await asyncio.gather(*(turn() for _ in range(4)))
        assert turns == 4
        await lock.acquire()
        with pytest.raises(InvalidArgument, match="held by this task"):
            await lock.acquire()

        def beside() -> Any:
            with cluster.connect() as other:
                same = threaded.Lock(other.journal("aio_lock"), "one", holder="b")
                with pytest.raises(TimedOut, match="was held by 'a'"):
                    same.acquire(0)

        await asyncio.to_thread(beside)
        await lock.release()
        await lock.release()
        assert not lock.held
        with pytest.raises(NotLeading, match="acquire it first"):
            lock.check()
        await without_elections()

    on_loop(cluster, work)


def test_cancelled_wait_for_a_lease_leaves_no_candidate(cluster):
    async def work(client):
        journal = await client.create_journal("aio_lease")
        async with recipes.AsyncLease(journal, "job", holder="a", ttl_ms=20_000) as held:
            other = recipes.AsyncLease(journal, "job", holder="b", ttl_ms=20_000)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await other.acquire()
            with pytest.raises(TimedOut, match="was held by"):
                await other.acquire(0)
            assert held.held
            assert not other.held
        async with other:
            assert other.held
        await without_elections()

    on_loop(cluster, work)


def test_numbers_of_a_counter_are_given_once(cluster):
    async def work(client):
        journal = await client.create_journal("aio_counter")
        counter = recipes.AsyncCounter(journal, "next")
        found = await asyncio.gather(*(counter.next() for _ in range(8)))
        assert sorted(found) == list(range(1, 9))
        async with journal.atomically() as step:
            first = await counter.take(step, 3)
            assert await counter.take(step) == first + 3
        assert await counter.next() == first + 4
        with pytest.raises(InvalidArgument, match="count=0"):
            await counter.next(0)

    on_loop(cluster, work)
