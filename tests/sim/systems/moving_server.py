"""A `HostServer` whose replica is created and deleted by the product's copy services."""

from types import SimpleNamespace
from typing import Any

import msgspec

from nyala.admin.fencing import Fence, OrderFence
from nyala.common.errors import Unavailable
from nyala.common.ids import ServerUuid, TabletId
from nyala.copying.service import copy_handlers
from nyala.datadir.instance import Instance
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.raft.membership import Configuration, Member
from nyala.replica.copy.manager import CopyManager
from nyala.replica.host import ReplicaHost
from nyala.replica.replica import Replica
from nyala.replica.state_machine import Transport
from nyala.replica.status import State
from nyala.replica.witness import Witness
from tests.sim.systems.host_server import OPTIONS, HostServer
from tests.sim.systems.moved_machine import MovedMachine
from tests.sim.systems.stores import GROUP

MOVING_OPTIONS = msgspec.structs.replace(
    OPTIONS, wal_retain_mb=0, copy_chunk_bytes=700, copy_retry_ms=1500, copy_wait_ms=6000,
    copy_session_ttl_ms=3000, copy_sessions_max=4,
)  # fmt: skip
"""Options under which logs are released early and copies have many chunks."""
NO_ROWS = SimpleNamespace(applied=[])


class MovingServer(HostServer):
    """As `HostServer`; without initial membership it has no replica until a copy or a witness is created."""

    options = MOVING_OPTIONS
    padding = 8000

    def __init__(
        self,
        env: Env,
        transport: Transport,
        uuid: ServerUuid,
        config: Configuration,
        me: Member,
    ) -> None:
        super().__init__(env, transport, uuid, config, me)
        identity: Any = SimpleNamespace(uuid=uuid, instance=Instance(uuid, "tserver", "sim"))
        check = OrderFence(env, identity, Fence()).check
        self._copying = copy_handlers(env, identity, self._copies, check)

    def _copies(self) -> CopyManager:
        if self.host is None:
            raise Unavailable("starting")
        return self.host.copies

    async def _begin(self, host: ReplicaHost) -> None:
        if self._first:
            await super()._begin(host)

    def _create(self, directory: str) -> MovedMachine:
        return MovedMachine(self._env.files, directory)

    def _open(self, group: TabletId, directory: str) -> MovedMachine:
        return MovedMachine(self._env.files, directory)

    def handlers(self) -> Handlers:
        """All calls, those of copies too."""
        return {**super().handlers(), **self._copying}

    def _replica(self) -> Replica:
        replica = super()._replica()
        if replica.state is not State.TOMBSTONED and isinstance(replica.machine, Witness):
            raise Unavailable("a witness")
        return replica

    @property
    def replica(self) -> Replica | None:
        """The replica on this server, if any."""
        return None if self.host is None else self.host.find(GROUP)

    @property
    def failed(self) -> BaseException | None:
        """As in `HostServer`; the removal of an incomplete copy is no failure."""
        err = super().failed
        return None if isinstance(err, Unavailable) else err

    @property
    def machine(self) -> Any:
        """As in `HostServer`; a witness has applied nothing."""
        assert self.replica is not None
        machine = self.replica.machine
        return NO_ROWS if isinstance(machine, Witness) else machine
