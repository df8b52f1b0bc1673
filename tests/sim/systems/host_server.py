"""The replica engine under the simulator: `ReplicaHost` with one group of `KvMachine`, served by two calls.

Everything below the state machine is the product's: log, consensus metadata, sessions, flush, recovery.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nyala.common.errors import Unavailable
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.common.options import Options
from nyala.env.disciplined_clock import DisciplinedClock
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.env.server_clock import ServerClock
from nyala.raft.membership import Configuration, Member
from nyala.raft.node import RaftNode
from nyala.raft.reconfiguration.changes import Change
from nyala.replica.host import ReplicaHost
from nyala.replica.replica import Replica
from nyala.replica.state_machine import Transport
from tests.sim.checkers.linearizability import Kind
from tests.sim.systems.kv import READ, SESSION_CHANGE, SNAPSHOT, STALE, KvMachine, encode_change
from tests.sim.systems.stores import GROUP

OPTIONS = Options(wal_segment_mb=1, flush_log_bytes=4096, flush_bytes=2048)
"""Segments and flushes so small that a short run has many."""
STALE_MS = 3000


class HostServer:
    """A process with one replica.

    Args:
        env: the simulated world.
        transport: to the other members.
        uuid: this server.
        config: first configuration of the group; servers outside of it begin without a replica.
        me: this server as a member.

    Attributes:
        options: of the process.
        padding: bytes without meaning that enlarge each change.
    """

    options = OPTIONS
    padding = 0

    def __init__(
        self,
        env: Env,
        transport: Transport,
        uuid: ServerUuid,
        config: Configuration,
        me: Member,
    ) -> None:
        self._env = env
        self._transport = transport
        self._uuid = uuid
        self._first = config.get(uuid) is not None
        waiting = () if config.get(uuid) else (replace(me, voter=False),)
        self._config = Configuration((*config.members, *waiting))
        self.host: ReplicaHost | None = None

    async def start(self) -> None:
        """Open the existing replica, or create it."""
        env = self._env
        env.files.make_dir("/data")
        physical = DisciplinedClock(env.clock, self.options.clock_max_ahead_ms)
        clock = self.clock = ServerClock(physical, env.files, "/data/clock")
        self.host = await ReplicaHost.open(
            env, self.options, "/data", self._uuid, self._transport, clock, self._open
        )
        await self._begin(self.host)

    async def _begin(self, host: ReplicaHost) -> None:
        """Create the initial replica."""
        if host.find(GROUP) is None:
            await host.create_replica(GROUP, self._config, self._create)

    def _create(self, directory: str) -> KvMachine:
        return KvMachine(self._env.files, directory)

    def _open(self, group: TabletId, directory: str) -> KvMachine:
        return KvMachine(self._env.files, directory)

    def handlers(self) -> Handlers:
        """All calls."""
        return {
            SESSION_CHANGE: self._change,
            READ: self._read,
            SNAPSHOT: self._snapshot,
            STALE: self._stale,
        }

    async def close(self) -> None:
        """Stop."""
        if self.host is not None:
            await self.host.close()
        await self._env.tasks.close()

    def _replica(self) -> Replica:
        replica = None if self.host is None else self.host.find(GROUP)
        if replica is None:
            raise Unavailable("starting")
        return replica

    @property
    def failed(self) -> BaseException | None:
        """Reason why the replica is FAILED; None if it is not."""
        replica = None if self.host is None else self.host.find(GROUP)
        return None if replica is None else replica.error

    @property
    def node(self) -> RaftNode | None:
        """The core; None without one."""
        replica = None if self.host is None else self.host.find(GROUP)
        return None if replica is None else replica.node

    @property
    def machine(self) -> KvMachine:
        """The state machine."""
        machine = self._replica().machine
        assert isinstance(machine, KvMachine)
        return machine

    async def change_config(self, changes: Sequence[Change], expected: OpId | None) -> None:
        """Change the members; returns when the change is committed."""
        await self._replica().change_config(changes, expected, timeout_ms=3000)

    def transfer(self, to: ServerUuid) -> None:
        """Transfer leadership."""
        self._replica().transfer(to)

    async def _change(self, request: list[Any]) -> bool:
        replica = self._replica()
        client, sequence, first, kind, key, value = request
        outcome = await replica.write(
            encode_change(Kind(kind), key, value) + b" " * self.padding,
            client_id=bytes.fromhex(client),
            sequence=sequence,
            first_outstanding=first,
            timeout_ms=3000,
        )
        return outcome.result == b"\x01"

    async def _read(self, request: list[int]) -> int | None:
        replica = self._replica()
        await replica.latest_point(2000)
        return self.machine.rows.get(request[0])

    async def _snapshot(self, request: list[int | None]) -> tuple[int, list[tuple[int, int]]]:
        at = await self._replica().read_point(request[0], 2000)
        return at, self.machine.at(at)

    async def _stale(self, request: list[int]) -> tuple[int, list[tuple[int, int]]]:
        at, _ = await self._replica().stale_point(STALE_MS, 1000, min_time=request[0])
        return at, self.machine.at(at)
