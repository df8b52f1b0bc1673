"""An ensemble on virtual time: real coordinators and servers, and a journal in memory."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from nyala.client.core import ClientCore, ClientOptions
from nyala.client.journal.core import JournalCore
from nyala.client.journal.coroutines import JournalCoroutines
from nyala.common.errors import NOT_SENT, NyalaError, TimedOut, Unavailable
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.env.rpc import Handlers
from nyala.ram.calls import EnsembleClient
from nyala.ram.coordinator import Coordinator, CoordinatorConfig, leader_address, note_alive
from nyala.ram.ids import HashRange, ServerId
from nyala.ram.server_list import ServerStatus
from nyala.ram.storage_server import StorageConfig, StorageServer
from nyala.ram.will import PART_LIMIT, TabletLoad
from nyala.wire import methods, status
from nyala.wire.proto import ram_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.tasks import SimClock, SimTasks
from tests.unit.client.support.journal_servers import MASTER, JournalServers

LOG = "ensemble"
CALL_US = 1_000


class SimEnsemble:
    """The network of an ensemble, and the processes on it.

    Attributes:
        journal: the servers of the journal.
        coordinators: by name.
        servers: by name.
        cut: names of processes that nobody reaches, and that reach nobody.
        apart: pairs of names of processes that do not reach each other.
        without_journal: names of processes whose steps do not reach the journal.
        late: requests of these processes reach others so many microseconds later.
        limit: of the parts of wills.
        loads: that servers report, by name.
        full_lists: number of times that a server was sent the whole list.
        most_updates: most changes of the list in one message.
    """

    def __init__(self, loop: SimLoop, seed: int = 0, limit: TabletLoad = PART_LIMIT) -> None:
        self.loop = loop
        self.journal = JournalServers(loop)
        self.coordinators: dict[str, Coordinator] = {}
        self.servers: dict[str, StorageServer] = {}
        self.cut: set[str] = set()
        self.apart: set[frozenset[str]] = set()
        self.without_journal: set[str] = set()
        self.late: dict[str, int] = {}
        self.limit = limit
        self.loads: dict[str, dict[HashRange, TabletLoad]] = {}
        self.seed = seed
        self.full_lists = self.most_updates = 0
        self._made = 0
        self._hosts: dict[str, tuple[str, Handlers]] = {}
        self._tasks: dict[str, SimTasks] = {}

    # ---- processes ---------------------------------------------------------------------------------

    def _env(self, name: str) -> Env:
        rng = random.Random(f"{self.seed} {name} {self._made}")
        self._made += 1
        tasks = self._tasks[name] = SimTasks(self.loop, rng)
        return Env(SimClock(self.loop), rng, SystemFiles(), tasks, _Network(self, name))  # type: ignore[arg-type]

    async def open(self, name: str) -> tuple[Env, JournalCoroutines]:
        """Open the journal for a process."""
        env = self._env(name)
        core = JournalCore(ClientCore(env, [MASTER], ClientOptions(timeout_ms=10_000)))
        return env, JournalCoroutines(core, await core.open("j"))

    async def coordinator(
        self,
        name: str,
        point: Callable[[str], None] = lambda name: None,
        on_end: Callable[[NyalaError], object] = lambda error: None,
    ) -> Coordinator:
        """Start a coordinator."""
        env, journal = await self.open(name)
        config = CoordinatorConfig(f"{name}:1", LOG, limit=self.limit)
        made = self.coordinators[name] = Coordinator(env, config, journal, point, on_end)
        self._hosts[config.address] = (name, made.handlers())
        await made.start()
        return made

    async def server(self, name: str) -> StorageServer:
        """Start a server."""
        env, journal = await self.open(name)
        config = StorageConfig(f"{name}:1")
        client = EnsembleClient(env, lambda: leader_address(journal, LOG))
        loads = self.loads.setdefault(name, {})
        made = self.servers[name] = StorageServer(
            env, config, client, lambda: note_alive(journal, LOG, config.address), lambda: loads
        )
        self._hosts[config.address] = (name, made.handlers())
        await made.start()
        return made

    async def kill(self, name: str) -> None:
        """End a process at once."""
        self._hosts.pop(f"{name}:1")
        self.coordinators.pop(name, None)
        self.servers.pop(name, None)
        await self._tasks.pop(name).close()

    # ---- network -----------------------------------------------------------------------------------

    async def deliver(
        self, sender: str, address: str, method: Any, request: Any, timeout_ms: int
    ) -> Any:
        """Carry a request and its answer."""
        await self.loop.delay(CALL_US + self.late.get(sender, 0))
        name, handlers = self._hosts.get(address, ("", {}))
        if name == "":
            raise Unavailable(f"nobody is at {address}", NOT_SENT)
        if self._is_cut(name, sender):
            await self.loop.delay(timeout_ms * 1000)
            raise TimedOut(f"no answer from {address}")
        if method not in handlers:
            raise Unavailable(f"{address} does not serve {method.path}")
        if method is methods.RAM_UPDATE_SERVER_LIST:
            self.full_lists += request.full
            self.most_updates = max(self.most_updates, len(request.updates))
        raw = method.encode_request(request)
        try:
            answer = await handlers[method](method.decode_request(raw))  # type: ignore[misc, call-arg]
        except NyalaError as err:
            raise status.from_proto(status.to_proto(err)) from None
        await self.loop.delay(CALL_US)
        if self._is_cut(name, sender):
            await self.loop.delay(timeout_ms * 1000)
            raise TimedOut(f"no answer from {address}")
        return method.decode_response(method.encode_response(answer))

    def _is_cut(self, one: str, other: str) -> bool:
        return bool({one, other} & self.cut) or frozenset((one, other)) in self.apart

    # ---- a client, and what it sees ----------------------------------------------------------------

    async def client(self, name: str = "client") -> EnsembleClient:
        """Return calls to the coordinator."""
        env, journal = await self.open(name)
        return EnsembleClient(env, lambda: leader_address(journal, LOG))

    def leader(self) -> Coordinator | None:
        """Return the coordinator that serves."""
        return next((c for c in self.coordinators.values() if c.term.epoch and c.upkeep), None)

    async def wait_s(self, seconds: float) -> None:
        """Let time pass."""
        await self.loop.delay(seconds * 1e6)

    async def until(self, what: Callable[[], object], seconds: float = 60) -> None:
        """Wait until something holds."""
        for _ in range(int(seconds * 20)):
            if what():
                return
            await self.wait_s(0.05)
        raise AssertionError("it does not hold in time")

    def settled(self) -> bool:
        """Return True if one coordinator leads, the others follow it, and servers are as its state says."""
        leader = self.leader()
        if leader is None:
            return False
        state = leader.term.state
        up = {s.id: s for s in state.servers.with_status(ServerStatus.UP)}
        alive = {s.member.id: s for s in self.servers.values() if s.enlisted}
        return (
            up.keys() == alive.keys()
            and len(alive) == len(self.servers)
            and state.servers.servers.keys() == up.keys()
            and state.servers.confirmed == state.servers.version
            and all(
                sorted(alive[i].member.owned) == state.tablets.owned_by(i)
                and {s for s in alive[i].member.servers.items} == {str(u) for u in up}
                for i in up
            )
            and state.tablets.owners().keys() <= up.keys()
            and all(c.term.state.dump() == state.dump() for c in self.coordinators.values())
        )

    def owners(self, table_id: int, key_hash: int) -> list[ServerId]:
        """Return the servers that own a key."""
        return [
            s.member.id
            for s in self.servers.values()
            if s.enlisted
            and any(
                t.table_id == table_id and t.first <= key_hash <= t.last for t in s.member.owned
            )
        ]

    async def status(self, name: str) -> pb.ServerStatusResponse:
        """Return what a server says of itself."""
        found: pb.ServerStatusResponse = await self.deliver(
            "client", f"{name}:1", methods.RAM_SERVER_STATUS, pb.ServerStatusRequest(), 1000
        )
        return found


class _Network:
    """The RPC interface of one process."""

    def __init__(self, ensemble: SimEnsemble, name: str) -> None:
        self._ensemble, self._name = ensemble, name

    async def call(self, address: str, method: Any, request: Any, *, timeout_ms: int) -> Any:
        ensemble = self._ensemble
        if address in ensemble.journal.members or address == MASTER:
            if self._name in ensemble.cut | ensemble.without_journal:
                await ensemble.loop.delay(timeout_ms * 1000)
                raise TimedOut("no answer")
            return await ensemble.journal.call(address, method, request, timeout_ms=timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await ensemble.deliver(self._name, address, method, request, timeout_ms)
        except TimeoutError:
            raise TimedOut(f"no answer from {address}") from None

    def request_stream(self, address: str, method: Any, on_response: Callable[[Any], None]) -> Any:
        return self._ensemble.journal.request_stream(address, method, on_response)


def ensemble(fn: Callable[[SimEnsemble], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on virtual time."""

    def wrapped() -> None:
        async def main(loop: SimLoop) -> None:
            await fn(SimEnsemble(loop))

        run(main, max_time_s=3000)

    wrapped.__name__ = fn.__name__
    return wrapped
