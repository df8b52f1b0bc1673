"""Changes of the masters: the steps of any group's members, on the masters' own group.

An operation that was killed at any point continues when it is repeated.
"""

import asyncio
import re
from collections.abc import Callable

from nyala.client.core import ClientCore
from nyala.common import addresses
from nyala.common.errors import (
    Forbidden,
    InvalidArgument,
    NotFound,
    NyalaError,
    TimedOut,
    Unavailable,
)
from nyala.common.ids import SYS_CATALOG, ServerUuid
from nyala.operate.group_view import ClusterServer, GroupView, named
from nyala.operate.member_steps import MemberKind
from nyala.operate.membership import POLL_MS, Membership
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

UUID = re.compile("[0-9a-f]{32}")
START_MS = 15_000
"""Time in which a process that was just started has to answer, in milliseconds."""


class MasterDirectory:
    """The masters of a cluster.

    Args:
        core: a client of it; one address that is still a master's is enough.
    """

    def __init__(self, core: ClientCore) -> None:
        self.core = core
        self.id = ""
        self.servers: dict[str, ClusterServer] = {}

    async def learn(self) -> None:
        """Update the masters from those that answer; wait for those of a new cluster to create it.

        Raises:
            Unavailable: none of them is in a group.
        """
        clock, known = self.core.env.clock, dict.fromkeys(self.core.masters.known)
        end_us = clock.monotonic_us() + START_MS * 1000
        while not (newest := await self._newest(known)) or not newest.cluster_id:
            if newest is None or clock.monotonic_us() > end_us:
                raise Unavailable(
                    f"none of the masters {', '.join(known)} answers and belongs to a group; start them, "
                    "and check the addresses: nyala master list at any master shows all"
                )
            await self.core.env.tasks.sleep_ms(POLL_MS)
        self.id = newest.cluster_id
        for m in newest.consensus.members:
            self.servers[m.uuid] = ClusterServer(ServerUuid(m.uuid), m.address, m.peer_address)

    async def _newest(self, known: dict[str, None]) -> pb.MasterStatusResponse | None:
        """Return the newest status that a member of a group reports; None: none does.

        Args:
            known: addresses to ask; gets those of all members.
        """
        newest: pb.MasterStatusResponse | None = None
        asked: set[str] = set()
        while todo := [a for a in known if a not in asked]:
            asked.update(todo)
            for status in await asyncio.gather(*(self._status(a) for a in todo)):
                if status is None or not all(m.uuid for m in status.consensus.members):
                    continue
                known |= dict.fromkeys(m.address for m in status.consensus.members)
                if newest is None or _at(status) > _at(newest):
                    newest = status
        return newest

    async def _status(self, address: str) -> pb.MasterStatusResponse | None:
        try:
            answer: pb.MasterStatusResponse = await self.core.env.rpc.call(
                address, methods.MASTER_STATUS, pb.MasterStatusRequest(), timeout_ms=1_000
            )
        except NyalaError:
            return None
        return answer

    async def info(self, address: str) -> pb.ServerInfoResponse:
        """Return the registration of a process. Raises its error."""
        answer: pb.ServerInfoResponse = await self.core.env.rpc.call(
            address, methods.SERVER_INFO, pb.ServerInfoRequest(), timeout_ms=3_000
        )
        return answer

    async def identify(self, address: str) -> ClusterServer:
        """Return the master that runs at an address, which may be new.

        Raises:
            Unavailable: no process answers. InvalidArgument: it is no master, or has the uuid of another one.
            Forbidden: it belongs to another cluster.
        """
        try:
            info = await self.info(address)
        except NyalaError as err:
            raise Unavailable(
                f"no master answers at {address}: {err.message}. Start the new one first: nyala master run "
                f"--address {address} --master-addresses {','.join(self.addresses())},{address} ..."
            ) from err
        if info.role != "master":
            raise InvalidArgument(
                f"at {address} there is a {info.role}, not a master; name a master's public address"
            )
        if info.cluster_id not in ("", self.id):
            raise Forbidden(
                f"the master at {address} belongs to cluster {info.cluster_id}, not to {self.id}; a new one "
                "needs an empty data directory"
            )
        known = self.servers.get(info.uuid)
        if known is not None and known.address != info.address:
            raise InvalidArgument(
                f"the process at {address} has the uuid of the master at {known.address}, {info.uuid}; is "
                "its directory a copy of that one's? Start it with an empty one; the two must never run both"
            )
        server = ClusterServer(ServerUuid(info.uuid), info.address, info.peer_address)
        self.servers[info.uuid] = server
        return server

    def addresses(self) -> list[str]:
        """Public addresses of all masters that are known."""
        return [s.address for s in self.servers.values()]

    def find(self, name: str, group: GroupView | None = None) -> ClusterServer:
        """Return a master by its uuid or its public address. Raises NotFound."""
        known = {**self.servers, **({} if group is None else group.servers)}
        found = named(name, known)
        if found is None:
            listed = ", ".join(str(s) for s in known.values())
            raise NotFound(f"{name!r} is not a master of this cluster; its masters are {listed}")
        return found

    async def check(self, server: ClusterServer) -> None:
        """Check that a master answers and has the expected uuid. Raises as `identify`."""
        if await self.identify(server.address) != server:
            raise Forbidden(
                f"at {server.address} there is another master than {server.uuid}; stop that one, and start "
                "the one that belongs there"
            )


def _at(status: pb.MasterStatusResponse) -> tuple[int, int]:
    return status.consensus.config_term, status.consensus.config_index


class MasterGroup:
    """The masters of a cluster, added and removed online. On the client's loop.

    Args:
        core: a client of the cluster; one address that is still a master's is enough.
        notify: called with each step before it is taken.
        timeout_ms: a command without progress for so long fails with TimedOut.
    """

    def __init__(
        self,
        core: ClientCore,
        notify: Callable[[str], None] = lambda _: None,
        timeout_ms: int = 60_000,
    ) -> None:
        self.directory = MasterDirectory(core)
        self._core, self._notify, self._timeout_ms = core, notify, timeout_ms
        self._tservers: list[str] = []
        self._membership = Membership(core, SYS_CATALOG, notify, timeout_ms, self.directory)

    @property
    def done(self) -> list[str]:
        """The steps taken."""
        return self._membership.done

    async def view(self) -> GroupView:
        """Return the group as it is. Raises Unavailable: no master answers."""
        return await self._membership.view()

    async def add(self, address: str) -> GroupView:
        """Add the new master at an address; it is a voter on return. Idempotent.

        It is added as a non-voter, gets a copy of the catalog, and is promoted when it has caught up.

        Raises:
            Unavailable, TimedOut: it does not answer, or no progress for `timeout_ms`.
            InvalidArgument, Forbidden: the process there cannot be a master of this cluster.
        """
        await self.directory.learn()
        server = await self._started(address)
        self._tservers = await self._alive()
        return await self._followed(await self._membership.add(server.uuid, MemberKind.VOTER))

    async def _started(self, address: str) -> ClusterServer:
        """Return the master at an address, which may still be starting. Raises as `identify`."""
        env = self._core.env
        end_us = env.clock.monotonic_us() + min(self._timeout_ms, START_MS) * 1000
        while True:
            try:
                return await self.directory.identify(address)
            except Unavailable:
                if env.clock.monotonic_us() >= end_us:
                    raise
            await env.tasks.sleep_ms(POLL_MS)

    async def remove(self, name: str) -> GroupView:
        """Remove a master and delete its catalog; a leader transfers leadership first. Idempotent.

        A master that does not answer detects its removal when it runs again.

        Args:
            name: its uuid, or its public address.

        Raises:
            InvalidArgument: it is the only one; or neither a uuid nor an address, or that of another server.
            Forbidden: it is a master of another cluster.
            TimedOut: no progress for `timeout_ms`, for instance because too few of the other masters answer.
        """
        group = await self.view()
        self._tservers = await self._alive()
        try:
            server = self.directory.find(name, group)
        except NotFound:
            if not UUID.fullmatch(name):
                addresses.parse(name)
            try:
                server = await self.directory.identify(name)  # removed before, and still running
            except Unavailable:  # removed before, and stopped
                return await self._followed(group)
        member = group.member(server)
        if member is not None and group.config is not None and group.config.members == (member,):
            raise InvalidArgument(
                f"{server} is the only master: the catalog would be lost. Add another first: nyala master add"
            )
        return await self._followed(await self._membership.remove(server.uuid))

    async def _followed(self, group: GroupView) -> GroupView:
        """Wait until all tablet servers report to these masters, so that removed ones may be stopped.

        Raises:
            TimedOut: some live servers do not, within `timeout_ms`.
        """
        env = self._core.env
        masters = {m.address for m in group.config.members if m.voter} if group.config else set()
        end_us = env.clock.monotonic_us() + self._timeout_ms * 1000
        notified = False
        while waiting := await self._stale(masters):
            if env.clock.monotonic_us() >= end_us:
                raise TimedOut(
                    f"the tablet servers {', '.join(waiting)} do not report to the masters as they are now: "
                    "let masters that were removed run until they do. Run the command again to wait"
                )
            if not notified:
                self._notify("wait until the tablet servers report to the masters as they are now")
                notified = True
            await env.tasks.sleep_ms(POLL_MS)
        return group

    async def _stale(self, masters: set[str]) -> list[str]:
        """Return the tablet servers that report to other masters, or are live and do not answer."""
        alive = await self._alive()
        asked = list(dict.fromkeys([*self._tservers, *alive]))
        infos = await asyncio.gather(*(self._info(a) for a in asked))
        return [
            a
            for a, followed in zip(asked, infos, strict=True)
            if (a in alive if followed is None else followed != masters)
        ]

    async def _alive(self) -> list[str]:
        """Return the live tablet servers of the leader's list; a new leader knows few."""
        listed = await self._core.servers()
        return [s.address for s in listed.servers if s.role == "tserver" and s.alive]

    async def _info(self, address: str) -> set[str] | None:
        """Return the masters of a tablet server; None: it does not answer."""
        try:
            return set((await self.directory.info(address)).master_addresses)
        except NyalaError:
            return None
