"""View of one tablet's group, from the responses of all its servers.

Commands that change members decide by it. It is read again for each decision, so that a command that was
killed can be repeated.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from nyala.client.core import ClientCore
from nyala.common.errors import Forbidden, NotFound, NyalaError
from nyala.common.ids import ServerUuid
from nyala.env.rpc import Method
from nyala.raft.membership import Configuration, Member
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb

ASK_MS = 3_000
ENDED = ("DONE", "FAILED", "CANCELLED")
"""Stages of ended copies, as servers report them."""


@dataclass(frozen=True, slots=True)
class ClusterServer:
    """One tablet server, as listed by the masters or in a group's configuration."""

    uuid: ServerUuid
    address: str
    peer_address: str

    def __str__(self) -> str:
        return f"{self.uuid} at {self.address}" if self.address else str(self.uuid)


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """State of one replica, as its server reports it.

    Attributes:
        status: as reported by the server; None: it has no replica.
        copy: progress of its copy of this tablet; None: there is none.
        silent: the error of a server that did not answer; empty: it answered.
    """

    status: pb.TabletStatus | None = None
    copy: pb.CopyProgress | None = None
    silent: str = ""

    @property
    def state(self) -> str:
        """State of the replica, as in reports; empty: there is none, or it is not known."""
        return "" if self.status is None else self.status.report.state

    @property
    def exists(self) -> bool:
        """True if the server has a replica in any state but TOMBSTONED."""
        return self.state not in ("", "TOMBSTONED")

    @property
    def has_data(self) -> bool:
        """True if it is a member with data, not a witness."""
        return self.status is not None and bool(self.status.report.table_id)

    @property
    def copying(self) -> bool:
        """True if a copy to this server is under way, or waits here to become a member."""
        return self.copy is not None and self.copy.stage not in ENDED


@dataclass(frozen=True, slots=True)
class GroupView:
    """Replicas of a tablet at one moment.

    Attributes:
        tablet: its id.
        servers: all tablet servers that are known, by uuid.
        replicas: replicas of the servers that were asked, by uuid.
    """

    tablet: str
    servers: Mapping[str, ClusterServer]
    replicas: Mapping[str, ReplicaView]

    def of(self, server: ClusterServer) -> ReplicaView:
        """Return the state of a server's replica."""
        return self.replicas.get(server.uuid, ReplicaView(silent="was not asked"))

    @property
    def leader(self) -> ClusterServer | None:
        """The server that leads in the highest term; None: no leader answers."""
        leading = [
            (r.status.report.consensus.term, uuid)
            for uuid, r in self.replicas.items()
            if r.status is not None and r.status.report.role == "LEADER"
        ]
        return self.servers[max(leading)[1]] if leading else None

    @property
    def status(self) -> pb.TabletStatus | None:
        """Status of the leader."""
        return None if self.leader is None else self.of(self.leader).status

    @property
    def config(self) -> Configuration | None:
        """The committed configuration of the leader; without a leader the newest one reported."""
        statuses = [self.status] if self.status else [r.status for r in self.replicas.values()]
        known = [
            convert.configuration_from_proto(s.report.consensus) for s in statuses if s is not None
        ]
        return max((c for c in known if c.members), key=lambda c: c.id, default=None)

    @property
    def changing(self) -> bool:
        """True if a change of the members is not committed yet."""
        status = self.status
        return status is not None and (
            convert.configuration_from_proto(status.active).id
            != convert.configuration_from_proto(status.report.consensus).id
        )

    def member(self, server: ClusterServer) -> Member | None:
        """Return the member of a server in the committed configuration."""
        return None if self.config is None else self.config.get(server.uuid)

    def peer(self, server: ClusterServer) -> pb.PeerReport | None:
        """Return the leader's status of a peer."""
        peers = () if self.status is None else self.status.peers
        return next((p for p in peers if p.uuid == server.uuid), None)


class ServerDirectory(Protocol):
    """The servers that may have replicas of a group.

    Attributes:
        core: a client of the cluster.
        id: the cluster's id; empty before `learn`.
        servers: the servers known, by uuid.
    """

    core: ClientCore
    id: str
    servers: dict[str, ClusterServer]

    async def learn(self) -> None:
        """Update `servers` from the masters."""
        ...

    def find(self, name: str, group: GroupView | None = None) -> ClusterServer:
        """Return a server by uuid or public address. Raises NotFound."""
        ...

    async def check(self, server: ClusterServer) -> None:
        """Check that a server answers and has the expected uuid and cluster id."""
        ...


class TServerDirectory:
    """The tablet servers of a cluster.

    Args:
        core: a client of it.
    """

    def __init__(self, core: ClientCore) -> None:
        self.core = core
        self.id = ""
        self.servers: dict[str, ClusterServer] = {}

    async def learn(self) -> None:
        """Update `servers` from the masters."""
        listed = await self.core.servers()
        self.id = listed.cluster_id
        for s in listed.servers:
            if s.role == "tserver":
                self.servers[s.uuid] = ClusterServer(ServerUuid(s.uuid), s.address, s.peer_address)

    def find(self, name: str, group: GroupView | None = None) -> ClusterServer:
        """Return a server by its uuid or its public address; also one that only `group` knows.

        Raises:
            NotFound: no such server.
        """
        known = {**self.servers, **({} if group is None else group.servers)}
        found = named(name, known)
        if found is None:
            listed = ", ".join(str(s) for s in known.values()) or "none"
            raise NotFound(
                f"no tablet server {name!r} belongs to this cluster; name one by uuid or address: {listed}"
            )
        return found

    async def check(self, server: ClusterServer) -> None:
        """Verify that a server answers and has the uuid and the cluster id expected of it.

        Raises:
            Unavailable, TimedOut: it does not answer.
            Forbidden: another server runs at its address, or it belongs to another cluster.
        """
        info: pb.ServerInfoResponse = await ask(
            self.core, server, methods.SERVER_INFO, pb.ServerInfoRequest()
        )
        if info.uuid != server.uuid or info.cluster_id != self.id:
            raise Forbidden(
                f"at {server.address} there is server {info.uuid} of cluster "
                f"{info.cluster_id or 'none yet'}, not {server.uuid} of cluster {self.id}; stop that one, "
                "and start the one that belongs there"
            )


def named(name: str, servers: Mapping[str, ClusterServer]) -> ClusterServer | None:
    """Return the server with this uuid or public address; None: there is none."""
    return servers.get(name) or next((s for s in servers.values() if s.address == name), None)


async def ask(
    core: ClientCore, server: ClusterServer, method: Method, request: Any, timeout_ms: int = ASK_MS
) -> Any:
    """Call one server.

    Args:
        core: a client of the cluster.
        server: that is called.
        method: method of the RPC.
        request: its message.
        timeout_ms: deadline.

    Returns:
        The response message.

    Raises:
        NyalaError: the server's error, or no answer.
    """
    return await core.env.rpc.call(server.address, method, request, timeout_ms=timeout_ms)


async def view(directory: ServerDirectory, tablet: str) -> GroupView:
    """Return the view of a tablet's group from all servers of a directory.

    Raises:
        NotFound: none that answers has one, or a tombstone of one.
    """
    servers = dict(directory.servers)
    order = list(servers.values())
    answers = await asyncio.gather(*(_replica(directory.core, s, tablet) for s in order))
    replicas: dict[str, ReplicaView] = {s.uuid: r for s, r in zip(order, answers, strict=True)}
    if all(r.status is None for r in replicas.values()):
        silent = [str(s) for s in order if replicas[s.uuid].silent]
        more = f"; {', '.join(silent)} did not answer" if silent else ""
        raise NotFound(
            f"no tablet server has a replica of a tablet {tablet!r}{more}; nyala "
            "table describe NAME lists the tablets of a table"
        )
    group = GroupView(tablet, servers, replicas)
    for member in () if group.config is None else group.config.members:
        if member.uuid not in servers:  # it has not reported since the masters started
            servers[member.uuid] = ClusterServer(member.uuid, member.address, member.peer_address)
            replicas[member.uuid] = ReplicaView(silent="is unknown to the masters")
    return group


async def _replica(core: ClientCore, server: ClusterServer, tablet: str) -> ReplicaView:
    try:
        copies, status = await asyncio.gather(
            ask(core, server, methods.COPY_STATUS, pb.CopyStatusRequest(tablet_ids=[tablet])),
            _status(core, server, tablet),
        )
    except NyalaError as err:
        return ReplicaView(silent=err.message)
    return ReplicaView(status, copies.copies[0] if copies.copies else None)


async def _status(core: ClientCore, server: ClusterServer, tablet: str) -> pb.TabletStatus | None:
    request = pb.ListTabletsRequest(tablet_ids=[tablet])
    try:
        answer: pb.ListTabletsResponse = await ask(core, server, methods.LIST_TABLETS, request)
    except NotFound:
        return None
    return answer.tablets[0]
