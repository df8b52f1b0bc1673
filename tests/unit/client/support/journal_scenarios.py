"""Tests of a client of a journal on virtual time, and the changes and conditions of its steps."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from nyala.client.core import ClientCore, ClientOptions
from nyala.client.journal.core import JournalCore
from nyala.client.journal.locations import OpenJournal
from nyala.client.journal.pages import items_of
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.wire.proto import journal_pb2
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.tasks import SimClock, SimTasks
from tests.unit.client.support.journal_servers import MASTER, JournalServers


class Scenario:
    """A client with the journal open, and its servers."""

    def __init__(self, loop: SimLoop, servers: JournalServers, **options: Any) -> None:
        self.loop = loop
        self.servers = servers
        rng = random.Random(7)
        env = Env(SimClock(loop), rng, SystemFiles(), SimTasks(loop, rng), servers)  # type: ignore[arg-type]
        self.client = ClientCore(env, [MASTER], ClientOptions(timeout_ms=10_000, **options))
        self.core = JournalCore(self.client)
        self.journal: OpenJournal

    async def open(self) -> "Scenario":
        """Open the journal."""
        self.journal = await self.core.open("j")
        return self

    async def step(self, *changes: Any, require: Any = ()) -> tuple[int, ...]:
        """Execute a step of messages; return its ids."""
        return (await self.core.step(self.journal, list(require), list(changes))).ids

    async def append(
        self, log: str, data: bytes, *invalidates: int, last: int | None = None
    ) -> int:
        """Append an entry."""
        require = [] if last is None else [log_last(log, last)]
        return (await self.step(append(log, data, *invalidates), require=require))[0]

    async def read(self, log: str, **how: Any) -> list[tuple[int, bytes]]:
        """Return all entries of a log, by a new handle."""
        pages = self.core.log(self.journal, log).entry_pages(**how)
        return [(e.id, e.data) async for e in items_of(pages)]


def scenario(fn: Callable[[Scenario], Awaitable[None]]) -> Callable[[], None]:
    """Return a test that runs a coroutine function with a `Scenario` on virtual time."""

    def wrapped() -> None:
        async def main(loop: SimLoop) -> None:
            await fn(await Scenario(loop, JournalServers(loop)).open())

        run(main, max_time_s=600)

    wrapped.__name__ = fn.__name__
    return wrapped


def tail(s: Scenario, log: str = "a", after: int = 0) -> Any:
    """Return the events of a log after an id."""
    return items_of(s.core.tail(s.core.log(s.journal, log), after))


async def taken(items: AsyncIterator[Any], count: int) -> list[Any]:
    """Return the next items of an iterator."""
    return [await anext(items) for _ in range(count)]


def append(log: str, data: bytes, *invalidates: int) -> journal_pb2.JournalChange:
    """Return the change."""
    entry = journal_pb2.AppendEntry(log=log, data=data, invalidates=invalidates)
    return journal_pb2.JournalChange(append=entry)


def invalidate(log: str, *ids: int) -> journal_pb2.JournalChange:
    """Return the change."""
    return journal_pb2.JournalChange(invalidate=journal_pb2.InvalidateEntries(log=log, ids=ids))


def set_key(key: str, value: bytes) -> journal_pb2.JournalChange:
    """Return the change."""
    return journal_pb2.JournalChange(set=journal_pb2.SetKey(key=key, value=value))


def delete_log(log: str) -> journal_pb2.JournalChange:
    """Return the change."""
    return journal_pb2.JournalChange(delete_log=log)


def log_last(log: str, last: int) -> journal_pb2.JournalCondition:
    """Return the condition."""
    return journal_pb2.JournalCondition(log_last=journal_pb2.LogId(log=log, id=last))
