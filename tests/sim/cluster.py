"""A whole simulated cluster: real masters, real tablet servers, real clients, one seed.

The servers are `nyala.master.server.Master` and `nyala.tserver.server.TabletServer`, the clients the
coroutines of `nyala.client.core`. Only clocks, disks, threads and the network are simulated.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pyarrow as pa

from nyala.client.core import ClientOptions, Core
from nyala.client.locations import OpenTable
from nyala.common.ids import SYS_CATALOG, TabletId
from nyala.common.options import Options
from nyala.common.partition_spec import Hash, Partition
from nyala.common.schema import from_arrow
from nyala.master.config import MasterConfig
from nyala.master.server import Master
from nyala.raft.node import RaftNode
from nyala.tserver.config import TabletServerConfig
from nyala.tserver.server import TabletServer
from tests.sim.checkers import GroupWatch
from tests.sim.loop import SimLoop, seeded
from tests.sim.network import SimNetwork
from tests.sim.process import SimProcess
from tests.sim.replicas import nodes_of
from tests.sim.table_client import TableClient
from tests.sim.workload import History, Worker

OPTIONS = Options(wal_segment_mb=1, flush_bytes=32 << 10, flush_log_bytes=32 << 10)
"""Segments and flushes so small that a short run has many."""
SCHEMA = from_arrow(
    pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())]), ["k"]
)
CLIENT_OPTIONS = ClientOptions(timeout_ms=30_000)


class SimCluster:
    """Masters `master-0` …, tablet servers `tserver-0` …, clients `client-0` ….

    Args:
        loop: virtual time.
        seed: of everything drawn.
        masters: how many.
        tservers: how many.
        options: of all servers.
    """

    def __init__(
        self,
        loop: SimLoop,
        seed: int,
        masters: int = 3,
        tservers: int = 3,
        options: Options = OPTIONS,
    ) -> None:
        self.loop = loop
        self.seed = seed
        self.network = SimNetwork(loop, seeded(seed, "network"))
        self.masters = [self._process(f"master-{n}") for n in range(masters)]
        self.tservers = [self._process(f"tserver-{n}") for n in range(tservers)]
        self.clients: list[SimProcess] = []
        addresses = tuple(m.address for m in self.masters)
        for process in self.masters:
            config = MasterConfig(
                "/data",
                process.address,
                process.peer_address,
                master_addresses=addresses,
                options=options,
            )
            process.program = lambda env, transport, c=config: Master(env, c, transport)
        for process in self.tservers:
            server = TabletServerConfig(
                "/data",
                process.address,
                process.peer_address,
                master_addresses=addresses,
                options=options,
            )
            process.program = lambda env, transport, c=server: TabletServer(env, c, transport)
        self.history = History()
        self.workers: list[Worker] = []
        self._working: list[asyncio.Task[None]] = []
        self._watches: dict[TabletId, GroupWatch] = {}

    def _process(self, name: str) -> SimProcess:
        return SimProcess(self.loop, self.network, self.seed, name, f"{name}:7050", f"{name}:9050")

    @property
    def servers(self) -> list[SimProcess]:
        """Masters, then tablet servers."""
        return [*self.masters, *self.tservers]

    def server(self, name: str) -> SimProcess:
        """Return a server by name."""
        return next(s for s in self.servers if s.name == name)

    async def start(self) -> Core:
        """Start everything and return a client that has seen it work."""
        for server in self.servers:
            server.start()
        core = self.client()
        await self.run(self.clients[-1], self._all_there, core)
        return core

    async def _all_there(self, core: Core) -> None:
        while True:
            answer = await core.servers()
            alive = [s for s in answer.servers if s.role == "tserver" and s.alive]
            if len(alive) == len(self.tservers):
                return
            await core.env.tasks.sleep_ms(100)

    def client(self, options: ClientOptions = CLIENT_OPTIONS) -> Core:
        """Start a client process."""
        process = SimProcess(self.loop, self.network, self.seed, f"client-{len(self.clients)}")
        self.clients.append(process)
        env = process.open()
        assert process.life is not None
        return process.life.inside(Core, env, [m.address for m in self.masters], options)

    async def run(
        self, process: SimProcess, fn: Callable[..., Awaitable[object]], *args: object
    ) -> object:
        """Run an async function as a process, and wait for it."""
        return await process.run(fn, *args)

    async def create_table(
        self, core: Core, name: str = "t", tablets: int = 1, replicas: int = 3
    ) -> OpenTable:
        """Create a table of (k, v) as the last client."""
        spec = Partition(hash=[Hash(["k"], tablets)]) if tablets > 1 else None
        made = await self.run(
            self.clients[-1], core.ddl.create_table, name, SCHEMA, spec, replicas, {}
        )
        assert isinstance(made, OpenTable)
        return made

    async def add_workers(self, count: int, table: str = "t", pause_us: float = 30_000) -> None:
        """Start clients at work on a table."""
        for _ in range(count):
            core = self.client()
            process = self.clients[-1]
            opened = await self.run(process, core.open_table, table)
            assert isinstance(opened, OpenTable)
            rng = seeded(self.seed, "worker", len(self.workers))
            client = TableClient(core, opened)
            worker = Worker(self.loop, client, self.history, rng, pause_us)
            self.workers.append(worker)
            self._working.append(process.run(worker.run))

    def replicas(self) -> Iterator[tuple[SimProcess, TabletId, RaftNode]]:
        """Every living core: (process, group, core)."""
        for server in self.servers:
            for group, node in nodes_of(server):
                yield server, group, node

    def members(self, group: TabletId) -> Iterator[tuple[str, RaftNode]]:
        """The living cores of a group."""
        return ((p.name, node) for p, g, node in self.replicas() if g == group)

    def leader_of(self, group: TabletId) -> SimProcess | None:
        """The living server that leads a group in its highest term."""
        leading = [(n.term, p.name) for p, g, n in self.replicas() if g == group and n.is_leader]
        return self.server(max(leading)[1]) if leading else None

    def leader_master(self) -> SimProcess | None:
        """The living master that leads."""
        return self.leader_of(SYS_CATALOG)

    def leader(self) -> SimProcess | None:
        """Any server that leads something, for the nemesis."""
        leading = sorted({p.name for p, _, n in self.replicas() if n.is_leader})
        if not leading:
            return None
        return self.server(self.network.rng.choice(leading))

    def look(self) -> None:
        """Check the invariants of every group, and that nothing has failed.

        Raises:
            AssertionError: with the values.
        """
        for process in (*self.servers, *self.clients):
            if process.failures:
                raise process.failures[0]
        for _, group, _ in self.replicas():
            if group not in self._watches:
                members = lambda group=group: self.members(group)  # noqa: E731
                self._watches[group] = GroupWatch(group, members)
        for watch in self._watches.values():
            watch.look()

    def terms(self) -> int:
        """Leaders seen, over all groups."""
        return sum(len(w.leaders) for w in self._watches.values())

    async def watch_on(self) -> None:
        """Check invariants every few milliseconds, for ever."""
        while True:
            self.look()
            await self.loop.delay(25_000)

    async def until(self, holds: Callable[[], object], what: str, timeout_s: float = 30) -> None:
        """Wait for a condition."""
        end = self.loop.time() + timeout_s
        while not holds():
            assert self.loop.time() < end, f"{what}: not within {timeout_s} s"
            await self.loop.delay(10_000)

    async def finish(self) -> None:
        """Stop the workers, then read every key that was used: nothing acknowledged may be missing."""
        for worker in self.workers:
            worker.stopped = True
        await asyncio.gather(*self._working)
        if self.workers:
            reader = self.workers[-1]
            await self.run(self.clients[-1], self._progress, reader)
        self.look()
        self.history.check()

    async def _progress(self, worker: Worker) -> None:
        acknowledged = self.history.acknowledged
        end = self.loop.time() + 90
        while self.history.acknowledged < acknowledged + 3:
            assert self.loop.time() < end, "no progress in 90 s after all faults were healed"
            await worker.once()
        await worker.read_all()
