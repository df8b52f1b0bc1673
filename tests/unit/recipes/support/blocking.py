"""Recipes as programs use them: calls that block, each of which lets virtual time pass until it is done."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from nyala.client.core import ClientCore
from nyala.client.journal.journal import Journal
from tests.sim.world.loop import SimLoop
from tests.sim.world.swallowed import swallowed
from tests.unit.recipes.support.candidates import Candidates

T = TypeVar("T")


class VirtualConnection:
    """The part of a `Connection` that a journal's handle needs, on virtual time.

    Attributes:
        core: of the client.
        closed: the client is closed, or this is a forked child.
    """

    def __init__(self, loop: SimLoop, core: ClientCore) -> None:
        self._loop = loop
        self.closed = False
        self.core = core

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return self._loop.run_until_complete(work)

    change = finish = run

    def leave(self, begin: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Have a coroutine run beside what follows."""
        if not self._loop.is_closed():
            self._loop.call_soon(lambda: self.core.env.tasks.spawn(begin(), "left"))

    def iterate_pages(self, pages: AsyncIterator[list[T]]) -> Iterator[T]:
        """Yield the items of all pages."""

        async def following() -> list[T] | None:
            return await anext(pages, None)

        while (page := self.run(following())) is not None:
            yield from page


class Processes:
    """Processes with a client each, of one journal in memory.

    Attributes:
        candidates: the servers of the journal.
    """

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.candidates = Candidates(loop)

    def journal(self, name: str = "other") -> Journal:
        """Open the journal in a process."""
        client, core, opened = self._loop.run_until_complete(self.candidates.opened(name))
        connection: Any = VirtualConnection(self._loop, client)
        return Journal(connection, core, opened)

    def crash(self, name: str) -> None:
        """End a process."""
        self._loop.run_until_complete(self.candidates.crash(name))

    @property
    def now_s(self) -> float:
        """Virtual time, in seconds."""
        return self._loop.time()

    def wait_s(self, seconds: float) -> None:
        """Let time pass."""
        self._loop.run_until_complete(self.candidates.wait_s(seconds))


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def processes(fn: Callable[..., None]) -> Callable[..., None]:
    """Run a test, which gets `Processes` as `p`, on virtual time."""

    @functools.wraps(fn)
    def wrapped(*args: Any, **named: Any) -> None:
        loop = SimLoop(900, 50_000_000)
        found: list[BaseException] = []
        try:
            with swallowed(found.append):
                fn(Processes(loop), *args, **named)
            assert not found, found
            assert not loop.failures, loop.failures
        finally:
            loop.run_until_complete(_end_tasks())
            loop.close()

    del wrapped.__wrapped__  # its first argument is no fixture
    return wrapped
