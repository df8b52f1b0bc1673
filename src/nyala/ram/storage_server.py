"""StorageServer: a server of the ensemble, here without its store of rows. It opens no sockets.

It enlists, owns tablets as it is told, and answers pings. One that is not pinged asks for the list, and
enlists anew if it is not up there any more.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from nyala.common.errors import InvalidArgument, NotFound, NyalaError, Unavailable
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.ram.calls import EnsembleClient, owned_message, range_of
from nyala.ram.checks import check_enlist
from nyala.ram.ids import HashRange, ServerId
from nyala.ram.member import EnsembleMember, owned_digest
from nyala.ram.server_list import ROLES
from nyala.ram.will import TabletLoad
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb

log = logging.getLogger(__name__)

ASK_MS = 5_000
ReportLoads = Callable[[], Mapping[HashRange, TabletLoad]]
"""Returns what the tablets of a server hold."""


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """Configuration of a server of the ensemble.

    Attributes:
        address: host:port.
        roles: "master", "backup", or both.
        read_mb_s: speed at which it reads its disk, in MB/s.
        silent_ms: time without pings after which it asks for the list.
    """

    address: str
    roles: Sequence[str] = ROLES
    read_mb_s: int = 100
    silent_ms: int = 2_000


class StorageServer:
    """See above. Used on one loop.

    Args:
        env: the environment.
        config: see `StorageConfig`.
        coordinator: calls to the coordinator.
        loads: returns what the tablets hold, for the wills; one without rows has no loads.
        note_alive: notes in the journal that it is alive; called while it is not pinged.
        on_end: called when its ensemble has ended, since the journal was dropped.

    Raises:
        InvalidArgument: the configuration has no roles, or no address.
    """

    def __init__(
        self, env: Env, config: StorageConfig, coordinator: EnsembleClient,
        note_alive: Callable[[], Awaitable[object]], loads: ReportLoads = dict,
        on_end: Callable[[NyalaError], object] = lambda error: None,
    ) -> None:  # fmt: skip
        check_enlist(pb.EnlistRequest(roles=config.roles, address=config.address))
        self._env = env
        self._config = config
        self._coordinator = coordinator
        self._note_alive = note_alive
        self._on_end = on_end
        self._loads = loads
        self._member: EnsembleMember | None = None
        self._pinged_us = 0
        self._tasks: list[asyncio.Task[object]] = []

    async def start(self) -> None:
        """Enlist, in the background."""
        spawn = self._env.tasks.spawn
        self._tasks = [
            spawn(self._stay(), "stay in the ensemble"),
            spawn(self._stay_known(), "be alive in the journal"),
        ]

    async def close(self) -> None:
        """Answer no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._member = None

    @property
    def enlisted(self) -> bool:
        """True if it has an id."""
        return self._member is not None

    @property
    def member(self) -> EnsembleMember:
        """Id, tablets and list of this server.

        Raises:
            Unavailable: it has not enlisted.
        """
        if self._member is None:
            raise Unavailable("this server has not enlisted with the coordinator; retry")
        return self._member

    async def _stay(self) -> None:
        """Enlist; again when this server is not up any more in the list of the coordinator."""
        while True:
            try:
                if self._member is None or await self._is_gone():
                    await self._enlist()
            except NotFound as err:  # of the journal
                self._on_end(err)
                return
            except NyalaError as err:
                log.info("the coordinator cannot be asked: %s", err)
            await self._env.tasks.sleep_ms(self._config.silent_ms // 4)

    async def _stay_known(self) -> None:
        """Note that this server is alive, while no leader pings it: it may be the leader that is cut off."""
        while True:
            await self._env.tasks.sleep_ms(self._config.silent_ms // 4)
            if self._member is not None and self._silent_us > self._config.silent_ms * 500:
                with contextlib.suppress(NyalaError):
                    await self._note_alive()

    @property
    def _silent_us(self) -> int:
        return self._env.clock.monotonic_us() - self._pinged_us

    async def _is_gone(self) -> bool:
        if self._silent_us < self._config.silent_ms * 1000:
            return False
        found = await self._coordinator.call(
            methods.RAM_SERVER_LIST, pb.ServerListRequest(), ASK_MS
        )
        return found.ensemble != self.member.ensemble or not any(
            ServerId.of(s.id) == self.member.id and s.status == "UP" for s in found.servers
        )

    async def _enlist(self) -> None:
        config, before = self._config, self._member
        request = pb.EnlistRequest(
            roles=config.roles, address=config.address, read_mb_s=config.read_mb_s,
            replaces=before.id.message() if before else None, ensemble=before.ensemble if before else "",
        )  # fmt: skip
        self._member = None  # it owns nothing from now on
        found = await self._coordinator.call(methods.RAM_ENLIST, request, ASK_MS)
        self._member = EnsembleMember(ServerId.of(found.id), found.ensemble, found.epoch)
        self._pinged_us = self._env.clock.monotonic_us()
        log.info("enlisted as server %s", self._member.id)

    # ---- handlers ----------------------------------------------------------------------------------

    def handlers(self) -> Handlers:
        """Return what it answers."""
        return {
            methods.RAM_TAKE_OWNERSHIP: self._take,
            methods.RAM_DROP_OWNERSHIP: self._drop,
            methods.RAM_SPLIT_OWNED: self._split,
            methods.RAM_SET_OWNERSHIP: self._set_all,
            methods.RAM_UPDATE_SERVER_LIST: self._update,
            methods.RAM_PING: self._ping,
            methods.RAM_SERVER_STATUS: self._status,
        }

    def _checked(self, fence: pb.Fence) -> EnsembleMember:
        member = self.member
        member.check(fence)
        return member

    async def _take(self, r: pb.TakeTabletOwnershipRequest) -> pb.TakeTabletOwnershipResponse:
        self._checked(r.fence).take(_ranges(r.tablets))
        return pb.TakeTabletOwnershipResponse()

    async def _drop(self, r: pb.DropTabletOwnershipRequest) -> pb.DropTabletOwnershipResponse:
        self._checked(r.fence).drop(r.table_id)
        return pb.DropTabletOwnershipResponse()

    async def _split(self, r: pb.SplitMasterTabletRequest) -> pb.SplitMasterTabletResponse:
        self._checked(r.fence).split(r.table_id, r.split_hash)
        return pb.SplitMasterTabletResponse()

    async def _set_all(self, r: pb.SetOwnershipRequest) -> pb.SetOwnershipResponse:
        self._checked(r.fence).set_all(_ranges(r.tablets))
        return pb.SetOwnershipResponse()

    async def _update(self, r: pb.UpdateServerListRequest) -> pb.UpdateServerListResponse:
        return pb.UpdateServerListResponse(version=self._checked(r.fence).update(r))

    async def _ping(self, request: pb.PingRequest) -> pb.PingResponse:
        member = self._checked(request.fence)
        self._pinged_us = self._env.clock.monotonic_us()
        loads = [
            pb.TabletLoad(tablet=owned_message(t), bytes=load.bytes, rows=load.rows)
            for t, load in sorted(self._loads().items())
            if t in member.owned
        ]
        return pb.PingResponse(
            version=member.servers.version, owned_digest=owned_digest(member.owned), loads=loads
        )

    async def _status(self, _request: pb.ServerStatusRequest) -> pb.ServerStatusResponse:
        member = self.member
        return pb.ServerStatusResponse(
            id=member.id.message(), epoch=member.guard.epoch, version=member.servers.version,
            tablets=[owned_message(t) for t in sorted(member.owned)], servers=member.listed(),
        )  # fmt: skip


def _ranges(tablets: Sequence[pb.Owned]) -> list[HashRange]:
    found = [range_of(t) for t in tablets]
    for one in found:
        if not one.first <= one.last:
            raise InvalidArgument(f"tablet {one.first} to {one.last} has no hashes")
    return found
