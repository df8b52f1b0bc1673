"""A whole simulated cluster: real masters, real tablet servers, real clients, one seed.

The servers are `nyala.master.server.Master` and `nyala.tserver.server.TabletServer`, the clients the
coroutines of `nyala.client.core`. Only clocks, disks, threads and the network are simulated.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import MappingProxyType

import msgspec
import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore, ClientOptions
from nyala.common.errors import NyalaError
from nyala.common.ids import SYS_CATALOG, ServerUuid, TabletId
from nyala.common.options import Options
from nyala.common.partitioning.partition_spec import Hash, Partition
from nyala.common.schema import from_arrow
from nyala.master.config import MasterConfig
from nyala.master.server import Master
from nyala.raft.membership import Configuration
from nyala.raft.messages import PeerBatch
from nyala.raft.node import RaftNode
from nyala.replica.replica import Replica
from nyala.tserver.config import TabletServerConfig
from nyala.tserver.server import TabletServer
from tests.sim.checkers.durable import Kept
from tests.sim.checkers.leases import LeaseWatch
from tests.sim.checkers.raft_rules import GroupWatch
from tests.sim.checkers.sent_messages import SentMessages
from tests.sim.runs.workload import History, Worker, let_succeed
from tests.sim.systems.replicas import hosts_of, nodes_of, replicas_of
from tests.sim.systems.table_client import TableClient
from tests.sim.world.loop import SimLoop, seeded
from tests.sim.world.network import SimNetwork
from tests.sim.world.process import SimProcess

OPTIONS = Options(wal_segment_mb=1, flush_bytes=32 << 10, flush_log_bytes=32 << 10)
"""Segments and flushes so small that a short run has many."""
REPAIRING = msgspec.structs.replace(
    OPTIONS, member_failed_after_ms=3000, repair_interval_ms=200, tserver_unresponsive_ms=2000,
    copy_retry_ms=2000,
)  # fmt: skip
"""Options under which masters replace lost replicas early."""
SCHEMA = from_arrow(
    pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())]), ["k"]
)
CLIENT_OPTIONS = ClientOptions(timeout_ms=30_000)


class SimCluster:
    """Masters `master-0` …, tablet servers `tserver-0` …, clients `client-0` ….

    Args:
        loop: virtual time.
        seed: seed of all choices.
        masters: number of masters.
        tservers: number of tablet servers.
        options: options of all servers.
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
        self.options = options
        self.network = SimNetwork(loop, seeded(seed, "network"))
        self.masters = [self.process(f"master-{n}") for n in range(masters)]
        self.tservers = [self.process(f"tserver-{n}") for n in range(tservers)]
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
        self._sent_messages: dict[TabletId, SentMessages] = {}
        self.names: dict[str, SimProcess] = {s.name: s for s in self.servers}
        self._uuids: dict[str, SimProcess] = {}
        self._broken: list[AssertionError] = []
        self._next_whole = 0.0
        self.leases = LeaseWatch(lambda: (r for s in self.servers for r in replicas_of(s)))
        self.network.on_send = self._sent
        loop.after_step = self.look

    def process(self, name: str) -> SimProcess:
        """Make a machine for a server."""
        return SimProcess(self.loop, self.network, self.seed, name, f"{name}:7050", f"{name}:9050")

    @property
    def servers(self) -> list[SimProcess]:
        """Masters, then tablet servers."""
        return [*self.masters, *self.tservers]

    def server(self, name: str) -> SimProcess:
        """Return a server by name."""
        return next(s for s in self.servers if s.name == name)

    async def start(self) -> ClientCore:
        """Start everything; return a client once a call has succeeded."""
        for server in self.servers:
            server.start()
        core = self.client()
        await self.run(self.clients[-1], self._all_there, core)
        return core

    async def _all_there(self, core: ClientCore) -> None:
        while True:
            answer = await core.servers()
            alive = [s for s in answer.servers if s.role == "tserver" and s.alive]
            if len(alive) == len(self.tservers):
                return
            await core.env.tasks.sleep_ms(100)

    def client(self, options: ClientOptions = CLIENT_OPTIONS) -> ClientCore:
        """Start a client process."""
        process = SimProcess(self.loop, self.network, self.seed, f"client-{len(self.clients)}")
        self.clients.append(process)
        env = process.open()
        assert process.incarnation is not None
        return process.incarnation.inside(
            ClientCore, env, [m.address for m in self.masters], options
        )

    async def run(
        self, process: SimProcess, fn: Callable[..., Awaitable[object]], *args: object
    ) -> object:
        """Run an async function as a process, and wait for it."""
        return await process.run(fn, *args)

    async def create_table(
        self,
        core: ClientCore,
        name: str = "t",
        tablets: int = 1,
        replicas: int = 3,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> OpenTable:
        """Create a table of (k, v) as the last client."""
        spec = Partition(hash=[Hash(["k"], tablets)]) if tablets > 1 else None
        made = await self.run(
            self.clients[-1], core.ddl.create_table, name, SCHEMA, spec, replicas, dict(options)
        )
        assert isinstance(made, OpenTable)
        return made

    async def add_workers(
        self, count: int, table: str = "t", pause_us: float = 30_000, writes_per_s: float = 0
    ) -> None:
        """Start clients that use a table; see `Worker`."""
        for _ in range(count):
            core = self.client()
            process = self.clients[-1]
            opened = await self.run(process, core.open_table, table)
            assert isinstance(opened, OpenTable)
            rng = seeded(self.seed, "worker", len(self.workers))
            client = TableClient(core, opened)
            worker = Worker(self.loop, client, self.history, rng, pause_us, writes_per_s)
            worker.name = process.name
            self.workers.append(worker)
            self._working.append(process.run(worker.run))

    def replicas(self) -> Iterator[tuple[SimProcess, TabletId, RaftNode]]:
        """All cores of running servers: (process, group, core)."""
        for server in self.servers:
            for group, node in nodes_of(server):
                yield server, group, node

    def members(self, group: TabletId) -> Iterator[tuple[str, RaftNode]]:
        """The cores of a group on running servers."""
        return ((p.name, node) for p, g, node in self.replicas() if g == group)

    def leader_of(self, group: TabletId) -> SimProcess | None:
        """The running server that leads a group in its highest term."""
        leading = [(n.term, p.name) for p, g, n in self.replicas() if g == group and n.is_leader]
        return self.server(max(leading)[1]) if leading else None

    def leader_master(self) -> SimProcess | None:
        """The running leader master."""
        return self.leader_of(SYS_CATALOG)

    def leader(self) -> SimProcess | None:
        """Any server that leads a group, for the nemesis."""
        leading = sorted({p.name for p, _, n in self.replicas() if n.is_leader})
        if not leading:
            return None
        return self.server(self.network.rng.choice(leading))

    def _kept(self, uuid: str, group: TabletId) -> Kept | None:
        found = self._uuids.get(uuid)
        return None if found is None else found.disk.durable.group(group)

    def _watch(self, group: TabletId) -> GroupWatch:
        watch = self._watches.get(group)
        if watch is None:
            kept = lambda uuid, group=group: self._kept(uuid, group)  # noqa: E731
            watch = self._watches[group] = GroupWatch(f"group {group}", kept)
            self._sent_messages[group] = SentMessages(f"group {group}")
        return watch

    def _sent(self, name: str, batch: PeerBatch) -> None:
        """Compare a sent message with its sender's disk; errors are raised after the step."""
        server = self.names[name]
        nodes = dict(nodes_of(server))
        try:
            for group, message in batch.messages:
                self._watch(group)
                kept = server.disk.durable.group(group)
                self._sent_messages[group].message_sent(name, message, nodes.get(group), kept)
        except AssertionError as err:
            self._broken.append(err)

    def look(self) -> None:
        """Check the changes of the last step, and that no task has failed.

        Raises:
            AssertionError: with the values.
        """
        touched = self.network.touched
        if touched:
            for name in touched:
                server = self.names.get(name)
                if server is not None:
                    for group, node in nodes_of(server, asleep=False):
                        self._uuids[node.core.uuid] = server
                        self._watch(group).step(name, node)
                        if node.is_leader:
                            self.leases.leads(group, node.term)
            touched.clear()
            if self._broken:
                raise self._broken[0]
            for process in (*self.servers, *self.clients):
                if process.failures:
                    raise process.failures[0]
        if self.loop.time() >= self._next_whole:
            self._next_whole = self.loop.time() + 1.0
            together: dict[TabletId, list[tuple[str, RaftNode]]] = {}
            for process, group, node in self.replicas():
                self._uuids[node.core.uuid] = process  # a replacement has sent nothing yet
                together.setdefault(group, []).append((process.name, node))
            for group in list(self._watches):
                self._watches[group].whole(together.get(group, ()))

    def groups(self) -> list[TabletId]:
        """Return the groups that were ever seen."""
        return list(self._watches)

    def uuids(self, process: SimProcess) -> set[str]:
        """Return under which uuids a server was seen."""
        return {uuid for uuid, p in self._uuids.items() if p is process}

    def put_back(self, name: str) -> None:
        """Handle the replacement of a server's disk by an older image, before it is replaced."""
        for group, watch in self._watches.items():
            acknowledged = self._sent_messages[group].acknowledged.get(name, (0, 0))
            for uuid in self.uuids(self.names[name]):
                watch.put_back(name, uuid, acknowledged)

    def committed(self, group: TabletId) -> Configuration | None:
        """Return the newest configuration that any member, running or not, has known to be committed."""
        watch = self._watches.get(group)
        return None if watch is None else watch.committed

    def checks(self) -> Counter[str]:
        """Return the number of checks of each invariant."""
        total = Counter[str]()
        for watch in self._watches.values():
            total += watch.checks
        for sent_messages in self._sent_messages.values():
            total += sent_messages.checks
        return total

    def transfer(self, rng: random.Random) -> None:
        """Order a transfer of leadership from some leader to some member."""
        leading = [(p, g) for p, g, node in self.replicas() if node.is_leader]
        if leading:
            process, group = rng.choice(leading)
            replica = hosts_of(process)[0].get(group)
            to = rng.choice(replica.status().config.members).uuid
            self.loop.trace.note("transfer", f"{process.name} {group} -> {to}")
            process.run(self._hand_over, replica, to)

    async def _hand_over(self, replica: Replica, to: ServerUuid) -> None:
        try:
            replica.transfer(to)
        except NyalaError as err:
            self.loop.trace.note("transfer_refused", f"{type(err).__name__} {err}")

    def terms(self) -> int:
        """Leaders seen, over all groups."""
        return sum(len(w.leaders) for w in self._watches.values())

    async def until(self, holds: Callable[[], object], what: str, timeout_s: float = 30) -> None:
        """Wait for a condition."""
        end = self.loop.time() + timeout_s
        while not holds():
            assert self.loop.time() < end, f"{what}: not within {timeout_s} s"
            await self.loop.delay(10_000)

    async def finish(self, within_s: float = 90) -> None:
        """Check after healing that each client's operations succeed and all acknowledged writes exist."""
        await let_succeed(self.loop, self.workers, within_s)
        await asyncio.gather(*self._working)
        if self.workers:
            await self.clients[-1].run(self.workers[-1].read_all)
        self.look()
        self.history.check()
