"""Tails and watches end when they are closed, by any thread, or when no event has come for a while."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from nyala.client.journal.following import Following
from nyala.common.errors import InvalidArgument
from nyala.env.loop_thread import LoopThread
from nyala.env.tasks import ClosedDuringCall
from tests.unit.recipes.support.blocking import processes
from tests.waiting import within


class LoopConnection:
    """The part of a `Connection` that `Following` needs, on a real thread."""

    def __init__(self) -> None:
        self.loop = LoopThread("events of a test")
        self.run = self.loop.run

    @property
    def closed(self) -> bool:
        return self.loop.closed

    def iterate_pages(self, pages: Any) -> Iterator[Any]:
        for page in self.loop.iterate(pages):
            yield from page


class Events:
    """Two events, then none.

    Attributes:
        closed: the generator has ended.
    """

    def __init__(self) -> None:
        self.closed = threading.Event()

    async def pages(self) -> AsyncGenerator[list[int], None]:
        try:
            yield [1, 2]
            await asyncio.Event().wait()
        finally:
            self.closed.set()


@pytest.fixture
def connection() -> Iterator[LoopConnection]:
    made = LoopConnection()
    yield made
    made.loop.close()


def read_all(items: Following[int], found: list[int], ready: threading.Event) -> None:
    with suppress(ClosedDuringCall):
        for item in items:
            found.append(item)
            if item == 2:
                ready.set()
        found.append(-1)


@pytest.mark.parametrize("how", ["close", "close the client"])
def test_another_thread_ends_an_iteration_that_waits(connection, how):
    events, found, ready = Events(), list[int](), threading.Event()
    items: Following[int] = Following(connection, events.pages(), None)
    reader = threading.Thread(target=read_all, args=(items, found, ready), daemon=True)
    reader.start()
    assert ready.wait(within(30))
    if how == "close":
        items.close()
        items.close()
        reader.join(within(30))
        assert found == [1, 2, -1], "it ends without an error"
        assert list(items) == []
    else:
        connection.loop.close()
        reader.join(within(30))
    assert not reader.is_alive()
    assert events.closed.wait(within(30)), "nothing is followed any more"


def test_iteration_ends_when_it_is_closed_by_its_own_thread_or_block(connection):
    for end in (lambda items: items.close(), lambda items: items.__exit__(None, None, None)):
        events = Events()
        items: Following[int] = Following(connection, events.pages(), None)
        assert next(items) == 1
        end(items)
        assert events.closed.wait(within(30))
        with pytest.raises(StopIteration):
            next(items)


@pytest.mark.parametrize("timeout", ["5", -1, float("nan"), 1 << 40])
def test_timeout_that_is_no_number_of_seconds_is_refused(connection, timeout):
    with pytest.raises(InvalidArgument, match="seconds from 0 on"):
        Following(connection, Events().pages(), timeout)


@processes
def test_tail_and_watch_end_when_nothing_has_come_for_a_while(p):
    journal = p.journal()
    journal.log("a").append(b"x")
    journal.set("k", b"v")
    following: list[Callable[[], Following[Any]]] = [
        lambda: journal.log("a").tail(timeout=30),
        lambda: journal.watch("k", timeout=30),
    ]
    for follow in following:
        began = p.candidates.loop.time()
        first, *_ = follow()
        assert type(first).__name__ in ("JournalEntry", "Key")
        assert 30 <= p.candidates.loop.time() - began < 40
