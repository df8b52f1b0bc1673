"""One group of servers, clients on it, a nemesis, and the checks at the end: one run of one seed.

The servers are `CoreServer`s (Raft's core over a log) or `HostServer`s (the replica engine).
"""

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import Any

from nyala.common.ids import ServerUuid
from nyala.env.env import Env
from nyala.raft.membership import Configuration, Member, initial
from nyala.raft.node import RaftNode
from nyala.replica.state_machine import Transport
from tests.sim.checkers import ApplyWatch, GroupWatch
from tests.sim.core_server import CoreServer, Mistakes
from tests.sim.faults import Nemesis, Swarm
from tests.sim.host_server import HostServer
from tests.sim.kv import KvClient
from tests.sim.loop import SimLoop, run, seeded
from tests.sim.network import SimNetwork
from tests.sim.outcome import Outcome
from tests.sim.process import SimProcess
from tests.sim.stores import PlainLog, Store
from tests.sim.waiting import or_failure
from tests.sim.workload import History, Worker

Make = Callable[[Env, Transport, ServerUuid, Configuration], Any]


def core(mistakes: Mistakes | None = None, store: Callable[[], Store] = PlainLog) -> Make:
    """Return what makes a server of Raft's core alone."""
    return lambda env, transport, uuid, config: CoreServer(
        env, transport, uuid, config, store(), mistakes or Mistakes()
    )


class CoreCluster:
    """Servers `core-0` … and their clients.

    Args:
        loop: virtual time.
        seed: of everything drawn.
        servers: how many.
        make: makes the server of one life of a process.
    """

    def __init__(
        self,
        loop: SimLoop,
        seed: int,
        servers: int = 3,
        make: Make | None = None,
    ) -> None:
        self.loop = loop
        self.seed = seed
        self.network = SimNetwork(loop, seeded(seed, "network"))
        self.sessions = make is HostServer
        self.network.doubles_calls = self.sessions
        names = [f"core-{n}" for n in range(servers)]
        self.config: Configuration = initial(
            Member(ServerUuid(f"{n:032x}"), f"{name}:9", f"{name}:7")
            for n, name in enumerate(names)
        )
        self.servers = [
            SimProcess(loop, self.network, seed, name, f"{name}:7", f"{name}:9") for name in names
        ]
        for number, server in enumerate(self.servers):
            uuid = ServerUuid(f"{number:032x}")
            server.program = lambda env, transport, uuid=uuid: (make or core())(
                env, transport, uuid, self.config
            )
        self.clients: list[SimProcess] = []
        self.history = History()
        self.workers: list[Worker] = []
        self._working: list[asyncio.Task[None]] = []
        self.watch = GroupWatch("core", self.nodes)
        self.applied = ApplyWatch()

    def nodes(self) -> Iterator[tuple[str, RaftNode]]:
        """The cores of living servers that have started."""
        for server in self.servers:
            if server.alive and server.server is not None and server.server.node is not None:
                yield server.name, server.server.node

    def leader(self) -> SimProcess | None:
        """The living server that leads the highest term."""
        leading = [(n.term, name) for name, n in self.nodes() if n.is_leader]
        return self.server(max(leading)[1]) if leading else None

    def led_by_another(self, old: SimProcess) -> bool:
        """Whether a server other than this one leads."""
        return self.leader() not in (None, old)

    def server(self, name: str) -> SimProcess:
        """Return a server by name."""
        return next(s for s in self.servers if s.name == name)

    def new_process(self) -> SimProcess:
        """Make a client's process."""
        process = SimProcess(self.loop, self.network, self.seed, f"client-{len(self.clients)}")
        self.clients.append(process)
        return process

    def client(self) -> KvClient:
        """Start a client process."""
        env = self.new_process().open()
        return KvClient(env, [s.address for s in self.servers], sessions=self.sessions)

    def add_workers(self, count: int, pause_us: float = 20_000) -> None:
        """Start clients at work."""
        for _ in range(count):
            client = self.client()
            rng = seeded(self.seed, "worker", len(self.workers))
            worker = Worker(self.loop, client, self.history, rng, pause_us)
            self.workers.append(worker)
            self._working.append(self.clients[-1].run(worker.run))

    async def until(self, holds: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
        """Wait for a condition."""
        end = self.loop.time() + timeout_s
        while not holds():
            assert self.loop.time() < end, f"{what}: not within {timeout_s} s"
            await self.loop.delay(10_000)

    async def watch_on(self) -> None:
        """Check invariants every few milliseconds, for ever."""
        while True:
            self.look()
            await self.loop.delay(10_000)

    def look(self) -> None:
        """Check invariants now."""
        for process in (*self.servers, *self.clients):
            if process.failures:
                raise process.failures[0]
        self.watch.look()

    def check_applied(self) -> None:
        """Check what the living servers applied."""
        for server in self.servers:
            if server.alive and server.server is not None:
                self.applied.look(server.name, server.server.machine.applied)

    async def progress(self) -> None:
        """All is healed: a write and a read must succeed soon, and nothing acknowledged is missing."""
        for worker in self.workers:
            worker.stopped = True
        await asyncio.gather(*self._working)  # what is under way is part of the history
        worker = Worker(self.loop, self.client(), self.history, seeded(self.seed, "last"))
        acknowledged = self.history.acknowledged
        end = self.loop.time() + 60
        while self.history.acknowledged < acknowledged + 3:
            assert self.loop.time() < end, "no progress in 60 s after all faults were healed"
            await worker.once()
        await worker.read_all()


async def story(
    loop: SimLoop,
    seed: int,
    swarm: Swarm,
    *,
    seconds: float,
    servers: int,
    make: Make | None,
) -> Outcome:
    """One run: start, work under faults, heal, make progress, check."""
    cluster = CoreCluster(loop, seed, servers, make)
    for server in cluster.servers:
        server.start()
    cluster.add_workers(5)
    names = [s.name for s in (*cluster.servers, *cluster.clients)]
    nemesis = Nemesis(
        cluster.network, cluster.servers, names, swarm, seeded(seed, "nemesis"), cluster.leader
    )
    watching = loop.create_task(cluster.watch_on())
    nemesis.start()
    await or_failure(watching, loop.delay(seconds * 1e6))
    await nemesis.heal()
    await or_failure(watching, cluster.progress())
    watching.cancel()
    cluster.look()
    cluster.check_applied()
    cluster.history.check()
    return Outcome(
        loop.trace, cluster.history, loop.events, loop.time(), len(cluster.watch.leaders)
    )


async def _paused(loop: SimLoop, seed: int, make: Make) -> None:
    cluster = CoreCluster(loop, seed, 3, make)
    for server in cluster.servers:
        server.start()
    cluster.add_workers(5)
    history = cluster.history
    for _ in range(8):
        await cluster.until(lambda: cluster.leader() is not None, "a leader")
        old = cluster.leader()
        assert old is not None
        old.pause()
        await cluster.until(functools.partial(cluster.led_by_another, old), "another leader")
        target = history.acknowledged + 20
        await cluster.until(functools.partial(history.reached, target), "writes")
        asking = []
        for _ in range(10):
            process = cluster.new_process()
            only = KvClient(process.open(), [old.address], timeout_ms=1000)
            asker = Worker(loop, only, history, seeded(seed, process.name))
            asking.append(process.run(asker.read, history.pick(cluster.network.rng)))
        await loop.delay(20_000)
        old.resume()
        await asyncio.gather(*asking)
    await cluster.progress()
    cluster.look()
    history.check()


def ask_paused_leaders(seed: int, make: Make) -> None:
    """Ask leaders that were paused, and others followed, for what the others have changed since."""
    run(lambda loop: _paused(loop, seed, make))


def run_core(
    seed: int,
    swarm: Swarm,
    *,
    seconds: float = 20,
    servers: int = 3,
    make: Make | None = None,
) -> Outcome:
    """Run one seed on one group."""
    return run(lambda loop: story(loop, seed, swarm, seconds=seconds, servers=servers, make=make))
