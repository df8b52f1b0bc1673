"""Candidates for the leadership of a log, each with a client of its own, of one journal in memory."""

import random
from collections.abc import Awaitable, Callable
from typing import Any

from nyala.client.core import ClientCore, ClientOptions
from nyala.client.journal.core import JournalCore
from nyala.client.journal.coroutines import JournalCoroutines
from nyala.client.journal.locations import OpenJournal
from nyala.common.errors import NOT_SENT, Unavailable
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.recipes.candidate import LeaderCandidate
from nyala.recipes.records import ElectionSettings
from nyala.wire import methods
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.tasks import SimClock, SimTasks
from tests.unit.client.support.journal_servers import MASTER, JournalServers

LOG = "service"
TIMEOUT_MS, BACK_OFF_MS = 3_000, 4_000


class Link:
    """The journal's RPC interface of one process.

    Attributes:
        cut: no call arrives.
        answer_ms: time that the answer to a call of a step takes.
    """

    def __init__(self, servers: JournalServers, loop: SimLoop) -> None:
        self._servers = servers
        self._loop = loop
        self.cut = False
        self.answer_ms = 0

    async def call(self, address: str, method: Any, request: Any, *, timeout_ms: int) -> Any:
        """See `Rpc.call`."""
        if self.cut:
            await self._loop.delay(1_000)
            raise Unavailable("cut off", NOT_SENT)
        try:
            return await self._servers.call(address, method, request, timeout_ms=timeout_ms)
        finally:
            if method in (methods.JOURNAL_STEP, methods.JOURNAL_STEPS):
                await self._loop.delay(self.answer_ms * 1_000)

    def request_stream(self, *words: Any, **named: Any) -> Any:
        """See `Rpc.request_stream`."""
        return self._servers.request_stream(*words, **named)


class Candidates:
    """The servers of a journal, and processes that use it.

    Attributes:
        lost: name and reason of each lost leadership.
    """

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.servers = JournalServers(loop)
        self.lost: list[tuple[str, str]] = []
        self._opened = 0
        self._tasks: dict[str, SimTasks] = {}
        self.links: dict[str, Link] = {}

    async def journal(self, name: str = "other") -> JournalCoroutines:
        """Open the journal in a client of its own."""
        return JournalCoroutines(*(await self.opened(name))[1:])

    async def opened(self, name: str) -> tuple[ClientCore, JournalCore, OpenJournal]:
        """Open the journal in a client of its own; return the client, its journals, and the handle."""
        rng = random.Random(f"{name} {self._opened}")
        self._opened += 1
        tasks = self._tasks[name] = SimTasks(self.loop, rng)
        link = self.links.setdefault(name, Link(self.servers, self.loop))
        env = Env(SimClock(self.loop), rng, SystemFiles(), tasks, link)  # type: ignore[arg-type]
        client = ClientCore(env, [MASTER], ClientOptions(timeout_ms=10_000))
        core = JournalCore(client)
        return client, core, await core.open("j")

    async def candidate(self, name: str) -> LeaderCandidate:
        """Start a candidate."""
        settings = ElectionSettings(LOG, name, f"{name}:7000", TIMEOUT_MS, BACK_OFF_MS)

        async def on_lost(reason: str) -> None:
            self.lost.append((name, reason))

        made = LeaderCandidate(await self.journal(name), settings, on_lost)
        made.start()
        return made

    async def crash(self, name: str) -> None:
        """End a process."""
        await self._tasks[name].close()

    async def wait_s(self, seconds: float) -> None:
        """Let time pass."""
        await self.loop.delay(seconds * 1e6)

    def entries(self, log: str = LOG) -> list[bytes]:
        """Return the valid entries of a log."""
        found = self.servers.state.logs.get(log)
        return [] if found is None else [data for _, data in found.entries.read(0, found.last)]


def candidates(fn: Callable[[Candidates], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on virtual time."""

    def wrapped() -> None:
        async def main(loop: SimLoop) -> None:
            await fn(Candidates(loop))

        run(main, max_time_s=900)

    wrapped.__name__ = fn.__name__
    return wrapped
