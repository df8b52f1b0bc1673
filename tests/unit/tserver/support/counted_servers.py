"""One master and three tablet servers in this process, each on its own thread, with counts of its loop."""

import asyncio
import selectors
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nyala.common.metrics import Metrics
from nyala.common.options import Options
from nyala.env.env import Env, system_env
from nyala.env.tasks import LoopTasks
from nyala.master.config import MasterConfig
from nyala.master.server import Master
from nyala.testing.layout import free_ports
from nyala.tserver.config import TabletServerConfig
from nyala.tserver.server import TabletServer
from nyala.wire.channels import GrpcRpc
from nyala.wire.peers import PeerTransport
from nyala.wire.server import GrpcServer

START_S = 120


class _Selector(selectors.EpollSelector):
    """A selector that counts its calls: an event loop makes one in each turn."""

    turns = 0

    def select(self, timeout: float | None = None) -> Any:
        self.turns += 1
        return super().select(timeout)


class _StoppableTasks(LoopTasks):
    """Tasks whose pauses end only while `running` is set: without it nothing periodic happens."""

    def __init__(self) -> None:
        super().__init__()
        self.running = asyncio.Event()
        self.running.set()

    async def sleep_ms(self, duration_ms: float) -> None:
        await super().sleep_ms(duration_ms)
        await self.running.wait()


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of one event loop.

    Attributes:
        turns: turns of the loop.
        calls: calls of Python functions on its thread, resumed coroutines included.
    """

    turns: int
    calls: int


class CountedServer:
    """A server on a thread of its own, with an event loop of asyncio.

    Args:
        make: makes the server.
        public: address of its public port.
        peer: address of its peer port.
    """

    def __init__(
        self, make: Callable[[Env, PeerTransport, Metrics], Any], public: str, peer: str
    ) -> None:
        self._make, self._public, self._peer = make, public, peer
        self._selector = _Selector()
        self._calls = 0
        self._ready = threading.Event()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._stop = asyncio.Event()
        self._tasks: _StoppableTasks
        self.server: Any = None
        self._thread = threading.Thread(target=self._run, name=f"server {public}", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until it serves."""
        assert self._ready.wait(START_S), f"{self._public} does not serve"
        assert self.server is not None

    def pause(self) -> None:
        """Stop what happens periodically: ticks, heartbeats, reports."""
        self._on_loop(self._tasks.running.clear)

    def resume(self) -> None:
        """Continue with what happens periodically."""
        self._on_loop(self._tasks.running.set)

    def profile(self, *, on: bool) -> None:
        """Count the calls of the loop's thread from now on, or no more."""
        self._on_loop(lambda: sys.setprofile(self._called if on else None))

    def counts(self) -> Counts:
        """Return the counts so far."""
        return Counts(self._selector.turns, self._calls)

    def close(self) -> None:
        """Stop the server."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S)

    def _called(self, frame: object, event: str, argument: object) -> None:
        self._calls += event == "call"

    def _on_loop(self, work: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            work()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(START_S), "the loop does not answer"

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        rpc, self._tasks = GrpcRpc(), _StoppableTasks()
        env = replace(system_env(rpc), tasks=self._tasks)
        transport = PeerTransport(env, lambda: server.cluster_id)
        server = self._make(env, transport, Metrics())
        port = GrpcServer(server.handlers(), self._public)
        closing: list[Callable[[], Awaitable[object]]] = [rpc.close, self._tasks.close]
        try:
            await port.start()
            closing.append(port.stop)
            closing += [server.close, transport.close]
            await server.start()
            await transport.listen(self._peer, server.uuid)
            self.server = server
            self._ready.set()
            await self._stop.wait()
        finally:
            for close in reversed(closing):
                await close()


@contextmanager
def counted_servers(folder: Path) -> Iterator[tuple[str, list[CountedServer]]]:
    """Start the servers; return the address of the master, and the three tablet servers."""
    public, *addresses = (f"127.0.0.1:{port}" for port in free_ports(8))
    options = Options()

    def master(env: Env, transport: PeerTransport, metrics: Metrics) -> Master:
        config = MasterConfig(
            str(folder / "m"), public, addresses[0], master_addresses=(public,), options=options
        )
        return Master(env, config, transport, metrics)

    def tserver(number: int) -> Callable[[Env, PeerTransport, Metrics], TabletServer]:
        config = TabletServerConfig(
            str(folder / f"t{number}"), addresses[2 * number + 1], addresses[2 * number + 2],
            master_addresses=(public,), options=options,
        )  # fmt: skip
        return lambda env, transport, metrics: TabletServer(env, config, transport, metrics)

    with ExitStack() as stack:
        started = [CountedServer(master, public, addresses[0])]
        stack.callback(started[0].close)
        for n in range(3):
            started.append(CountedServer(tserver(n), addresses[2 * n + 1], addresses[2 * n + 2]))
            stack.callback(started[-1].close)
        for server in started:
            server.wait()
        yield public, started[1:]
