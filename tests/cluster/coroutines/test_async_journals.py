"""Journals on an event loop."""

import asyncio

import pytest

import nyala
from nyala.common.errors import ConditionFailed, InvalidArgument, NotFound
from tests.cluster.support.loops import on_loop, one_turn


def test_logs_and_keys_of_a_journal_on_a_loop(cluster):
    async def work(client):
        journal = await client.create_journal("aio_journal")
        assert repr(journal) == "<nyala.aio.AsyncJournal 'aio_journal'>"
        log = journal.log("events")
        first = await log.append(b"one", expected=0)
        second = await log.append(b"two", invalidates=[first])
        with pytest.raises(ConditionFailed):
            await log.append(b"three", expected=first)
        assert [e.data async for e in log.read()] == [b"two"]
        assert [e async for e in log.read(limit=0)] == []
        assert await log.last_id() == second
        version = await journal.set("a", b"1", expected_version=0)
        async with journal.atomically() as step:
            step.require(key="a", version=version)
            step.set("b", b"2")
            step.append(log, b"four")
        assert len(step.ids) == 2

        async def refused():
            async with journal.atomically() as other:
                other.require(key="a", version=0)
                other.delete("b")

        with pytest.raises(ConditionFailed):
            await refused()
        with pytest.raises(InvalidArgument, match="was sent"):
            await step.send()
        assert [(k.name, k.value) async for k in journal.list()] == [("a", b"1"), ("b", b"2")]
        await journal.delete("a")
        assert await journal.get("a") is None
        assert [s.name for s in await journal.logs()] == ["events"]
        again = await client.open_journal("aio_journal")
        assert again.id == journal.id
        assert "aio_journal" in await client.journals()
        await log.delete()
        await client.drop_journal("aio_journal")
        with pytest.raises(NotFound):
            await client.open_journal("aio_journal")

    on_loop(cluster, work)


def test_events_of_a_journal_are_followed_on_a_loop(cluster):
    async def work(client):
        journal = await client.create_journal("aio_followed")
        log = journal.log("events")
        await log.append(b"one")
        async with log.tail(timeout=60) as events:
            assert (await anext(events)).data == b"one"
            waiting = asyncio.ensure_future(anext(events))
            for _ in range(20):
                await one_turn()
            waiting.cancel()  # the event that comes is not lost
            await asyncio.gather(waiting, return_exceptions=True)
            await log.append(b"two")
            assert (await anext(events)).data == b"two"
            ending = asyncio.ensure_future(anext(events))
            await one_turn()
        with pytest.raises(StopAsyncIteration):
            await ending
        await journal.set("k", b"v")
        watched = [e async for e in journal.watch("k", timeout=0.2)]
        assert isinstance(watched[0], nyala.Key)
        with pytest.raises(InvalidArgument, match="timeout"):
            log.tail(timeout="soon")

    on_loop(cluster, work)
