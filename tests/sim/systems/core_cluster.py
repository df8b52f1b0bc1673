"""One group of servers, its clients, and the checks after each step.

The servers are `CoreServer`s (Raft's core over a log) or `HostServer`s (the replica engine). One run of one
seed is in `core_run.py`.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from nyala.common.ids import ServerUuid
from nyala.env.env import Env
from nyala.raft.membership import Configuration, Member, initial
from nyala.raft.messages import PeerBatch
from nyala.raft.node import RaftNode
from nyala.replica.state_machine import Transport
from tests.sim.checkers.durable import Kept
from tests.sim.checkers.raft_rules import GroupWatch, standing
from tests.sim.checkers.sent_messages import SentMessages
from tests.sim.checkers.snapshots import Snapshots
from tests.sim.checkers.state_machines import ApplyWatch
from tests.sim.runs.workload import History, Worker, let_succeed
from tests.sim.systems.core_server import CoreServer, Mistakes
from tests.sim.systems.host_server import HostServer
from tests.sim.systems.kv import KvClient
from tests.sim.systems.moving_server import MovingServer
from tests.sim.systems.stores import GROUP, PlainLog, Store
from tests.sim.world.loop import SimLoop, seeded
from tests.sim.world.network import SimNetwork
from tests.sim.world.process import SimProcess

Make = Callable[[Env, Transport, ServerUuid, Configuration, dict[ServerUuid, Member]], Any]
"""Makes the server of an incarnation of a process: its uuid, the group's first configuration, all servers."""
WHOLE_EVERY_S = 1.0
"""Virtual time between two checks of everything from scratch."""


def core(mistakes: Mistakes | None = None, store: Callable[[], Store] = PlainLog) -> Make:
    """Return the factory of servers of Raft's core alone."""

    def make(
        env: Env,
        transport: Transport,
        uuid: ServerUuid,
        config: Configuration,
        members: dict[ServerUuid, Member],
    ) -> CoreServer:
        addresses = {u: m.peer_address for u, m in members.items()}
        return CoreServer(env, transport, uuid, config, store(), mistakes or Mistakes(), addresses)

    return make


def hosts(kind: type[HostServer] = HostServer) -> Make:
    """Return the factory of servers of the replica engine."""

    def make(
        env: Env,
        transport: Transport,
        uuid: ServerUuid,
        config: Configuration,
        members: dict[ServerUuid, Member],
    ) -> HostServer:
        return kind(env, transport, uuid, config, members[uuid])

    return make


host = hosts()
"""The replica engine as it is."""
moving = hosts(MovingServer)
"""The same, with moving replicas."""
ENGINES = (host, moving)


class CoreCluster:
    """Servers `core-0` … and their clients.

    Args:
        loop: virtual time.
        seed: of everything drawn.
        servers: number of initial members.
        make: makes the server of one incarnation of a process.
        spares: number of servers that are no initial members.
    """

    def __init__(
        self,
        loop: SimLoop,
        seed: int,
        servers: int = 3,
        make: Make | None = None,
        spares: int = 0,
    ) -> None:
        self.loop = loop
        self.seed = seed
        self.network = SimNetwork(loop, seeded(seed, "network"))
        self.sessions = make in ENGINES
        self.network.doubles_calls = self.sessions
        names = [f"core-{n}" for n in range(servers + spares)]
        self.members = {
            name: Member(ServerUuid(f"{n:032x}"), f"{name}:9", f"{name}:7")
            for n, name in enumerate(names)
        }
        self.config: Configuration = initial(list(self.members.values())[:servers])
        self.servers = [
            SimProcess(loop, self.network, seed, name, f"{name}:7", f"{name}:9") for name in names
        ]
        self._by_name = {s.name: s for s in self.servers}
        self._by_uuid = {m.uuid: self._by_name[name] for name, m in self.members.items()}
        members = {m.uuid: m for m in self.members.values()}
        for server in self.servers:
            uuid = self.members[server.name].uuid
            server.program = lambda env, transport, uuid=uuid: (make or core())(
                env, transport, uuid, self.config, members
            )
        self.clients: list[SimProcess] = []
        self.history = History()
        self.workers: list[Worker] = []
        self.snapshots: list[Snapshots] = []
        self.working: list[asyncio.Task[None]] = []
        self.watch = GroupWatch("the group", self._kept)
        self.sent_messages = SentMessages("the group")
        self.applied = ApplyWatch()
        self._broken: list[AssertionError] = []
        self._failed: dict[SimProcess, object] = {}
        self._told: dict[str, str] = {}
        self._next_whole = 0.0
        self.network.on_send = self._sent
        loop.after_step = self.look

    def _kept(self, uuid: str) -> Kept | None:
        return self._by_uuid[ServerUuid(uuid)].disk.durable.group(GROUP)

    # ---- servers -----------------------------------------------------------------------------------

    def node(self, server: SimProcess) -> RaftNode | None:
        """The core of a running server with an active replica."""
        if not server.alive or server.server is None:
            return None
        found: RaftNode | None = server.server.node
        return found

    def nodes(self) -> Iterator[tuple[str, RaftNode]]:
        """The cores of running servers with active replicas."""
        for server in self.servers:
            if (node := self.node(server)) is not None:
                yield server.name, node

    def leader(self) -> SimProcess | None:
        """The running server that leads in the highest term."""
        leading = [(n.term, name) for name, n in self.nodes() if n.is_leader]
        return self.server(max(leading)[1]) if leading else None

    def led_by_another(self, old: SimProcess) -> bool:
        """Return whether a server other than this one leads."""
        return self.leader() not in (None, old)

    def server(self, name: str) -> SimProcess:
        """Return a server by name."""
        return self._by_name[name]

    def by_uuid(self, uuid: ServerUuid) -> SimProcess:
        """Return a server by its uuid."""
        return self._by_uuid[uuid]

    # ---- clients -----------------------------------------------------------------------------------

    def new_process(self) -> SimProcess:
        """Make a client's process."""
        process = SimProcess(self.loop, self.network, self.seed, f"client-{len(self.clients)}")
        self.clients.append(process)
        return process

    def client(self) -> KvClient:
        """Start a client process."""
        env = self.new_process().open()
        return KvClient(env, [s.address for s in self.servers], sessions=self.sessions)

    def add_workers(self, count: int, pause_us: float = 20_000, writes_per_s: float = 0) -> None:
        """Start clients; pauses are short as long as they write less than required together."""
        for _ in range(count):
            client = self.client()
            rng = seeded(self.seed, "worker", len(self.workers))
            worker = Worker(self.loop, client, self.history, rng, pause_us, writes_per_s)
            worker.name = self.clients[-1].name
            self.workers.append(worker)
            self.working.append(self.clients[-1].run(worker.run))

    def add_snapshots(self) -> None:
        """Start a client that reads everything as of a time repeatedly."""
        one = Snapshots(self.loop, self.client(), seeded(self.seed, "snapshots"))
        self.snapshots.append(one)
        self.working.append(self.clients[-1].run(one.run))

    async def until(self, holds: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
        """Wait for a condition."""
        end = self.loop.time() + timeout_s
        while not holds():
            assert self.loop.time() < end, f"{what}: not within {timeout_s} s"
            await self.loop.delay(10_000)

    def put_back(self, name: str) -> None:
        """Handle the replacement of a server's disk by an older image, before it is replaced."""
        acknowledged = self.sent_messages.acknowledged.get(name, (0, 0))
        self.watch.put_back(name, self.members[name].uuid, acknowledged)

    # ---- what must hold ----------------------------------------------------------------------------

    def _sent(self, name: str, batch: PeerBatch) -> None:
        """Compare a sent message with its sender's disk; errors are raised after the step."""
        server = self._by_name[name]
        node = self.node(server)
        kept = server.disk.durable.group(GROUP)
        try:
            silent = server not in self._failed or not batch.messages
            assert silent, f"{name} has FAILED and sends {batch.messages}"
            for _, message in batch.messages:
                self.sent_messages.message_sent(name, message, node, kept)
        except AssertionError as err:
            self._broken.append(err)

    def look(self) -> None:
        """Check the changes of the last step; called when time advances."""
        touched = self.network.touched
        if touched:
            for name in touched:
                server = self._by_name.get(name)
                if server is not None:
                    self._look_at(server)
            touched.clear()
            if self._broken:
                raise self._broken[0]
            for process in (*self.servers, *self.clients):
                if process.failures:
                    raise process.failures[0]
        if self.loop.time() >= self._next_whole:
            self._next_whole = self.loop.time() + WHOLE_EVERY_S
            self.watch.whole(self.nodes())

    def _look_at(self, process: SimProcess) -> None:
        if not process.alive:
            self._failed.pop(process, None)
        server = process.server
        if not process.alive or server is None:
            return
        if server.failed is not None:
            if not process.disk.lost_data:
                raise server.failed
            if process not in self._failed:
                self._failed[process] = server.failed
                self.loop.trace.note("replica_failed", f"{process.name} {server.failed}")
            return
        self._failed.pop(process, None)
        node = server.node
        if node is None:
            return
        if self.loop.trace.recorder is not None:
            self._tell(process.name, node)
        self.watch.step(process.name, node)
        applied = server.machine.applied
        if applied:
            self.applied.look(process.name, applied)
            applied.clear()

    def _tell(self, name: str, node: RaftNode) -> None:
        """Record the state of a member, if it has changed."""
        text = standing(node)
        if self._told.get(name) != text and self.loop.trace.recorder is not None:
            self._told[name] = text
            self.loop.trace.recorder.note(self.loop.now_us(), "  " + name, text)

    async def progress(self, within_s: float = 60) -> None:
        """Check after healing that each client's operations succeed and all acknowledged writes exist."""
        await let_succeed(self.loop, self.workers, within_s)
        for one in self.snapshots:
            one.stopped = True
        await asyncio.gather(*self.working)  # operations in progress are part of the history
        last = Worker(self.loop, self.client(), self.history, seeded(self.seed, "last"))
        await last.read_all()
        for one in self.snapshots:
            await one.finish()
        self.look()
        self.history.check()
