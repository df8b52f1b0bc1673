"""Status of this master in the masters' group, for clients, servers and web pages."""

from collections.abc import Sequence
from dataclasses import dataclass

from nyala.common.errors import NyalaError
from nyala.datadir.identity import Identity
from nyala.master.group.catalog_replica import MasterReplica, ReplicaPresence
from nyala.master.group.peers import MasterPeers
from nyala.master.leader import MasterLeadership
from nyala.raft.membership import Configuration, Member
from nyala.raft.status import Role
from nyala.web.pages import Listing
from nyala.wire import convert
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(frozen=True, slots=True)
class ResponseHeader:
    """The part of each heartbeat response that is the same for all tablet servers.

    Attributes:
        master_uuid: its id.
        cluster_id: empty until the first leader has created it.
        catalog_incarnation: as `cluster_id`.
        term: current term of the sys catalog's group, as this master knows it.
        master_addresses: public addresses of all masters.
    """

    master_uuid: str
    cluster_id: str
    catalog_incarnation: str
    term: int
    master_addresses: tuple[str, ...]


@dataclass(slots=True)
class MemberState:
    """The state of one master's membership. GroupMember changes it, MemberStatus reads it.

    Attributes:
        group: this master's replica and its host; None before the start.
        presence: presence of the sys catalog in its directory.
        committed: the committed configuration last seen; None: none was seen.
        cluster: the cluster's record; None until it was read from this master's replica.
        leading: its leadership; None until it has joined the masters' group.
        failure: why this master cannot serve; None while it does or may.
    """

    group: MasterReplica | None = None
    presence: ReplicaPresence = ReplicaPresence.NOTHING
    committed: Configuration | None = None
    cluster: cat.ClusterRecord | None = None
    leading: MasterLeadership | None = None
    failure: NyalaError | None = None


class MemberStatus:
    """Status of one master in the masters' group, for clients, servers and web pages. On the loop only.

    Args:
        identity: uuid and cluster of this master.
        peers: the other masters.
        addresses: public addresses of all masters, as given at the start.
        state: state of the membership.
    """

    def __init__(
        self,
        identity: Identity,
        peers: MasterPeers,
        addresses: Sequence[str],
        state: MemberState,
    ) -> None:
        self._identity = identity
        self._peers = peers
        self._addresses = tuple(addresses)
        self._state = state

    def waiting_reason(self) -> str:
        """Return the reason why this master has no sys catalog yet, as a sentence for clients."""
        if self._state.failure is not None:
            return f"this master cannot join the others: {self._state.failure}"
        if not self._identity.known or self._state.group is None:
            return "this master is starting; retry"
        if self._state.presence is ReplicaPresence.HALF:
            return "a copy of the catalog to this master was not completed; nyala master add continues it"
        learned = self._peers.group()
        if self._state.presence is ReplicaPresence.REMOVED or (
            learned and not learned.get(self._identity.uuid)
        ):
            masters = ", ".join(m.address for m in learned.members) if learned else "not known here"
            was = (
                "was removed from"
                if self._state.presence is ReplicaPresence.REMOVED
                else "is not one of"
            )
            own = self._peers.own.address
            return f"this master {was} the masters, which are {masters}; nyala master add {own} adds it"
        missing = self._peers.missing()
        if not missing:
            return "this master is starting; retry"
        return f"this master is new and waits for the masters {', '.join(missing)} to answer"

    def status(self) -> pb.MasterStatusResponse:
        """Return MasterStatus; a master that is no member lists the masters that it knows."""
        opened, leading = self._identity.instance, self._state.leading
        answer = pb.MasterStatusResponse(
            uuid=opened.uuid, cluster_id=opened.cluster_id, server=self._peers.own
        )
        if leading is None:
            learned = self._peers.group()
            if learned is not None:
                answer.consensus.CopyFrom(convert.consensus_to_proto(learned, 0, None))
            for address in self._addresses if learned is None else ():
                answer.consensus.members.add(address=address)
            return answer
        status = leading.status()
        answer.leader = status.role is Role.LEADER
        answer.ready = leading.current() is not None
        answer.term = status.term
        answer.error = status.error
        answer.consensus.CopyFrom(
            convert.consensus_to_proto(status.committed_config, status.term, status.leader)
        )
        leader = None if status.leader is None else status.config.get(status.leader)
        if leader is not None:
            answer.leader_uuid, answer.leader_address = leader.uuid, leader.address
        return answer

    def leader_web_address(self) -> str:
        """Return the address of the leader's web port; empty: not known."""
        return next((e.web_address for _, e in self._entries() if e.leader), "")

    def page(self) -> Listing:
        """Return the web page of the masters."""
        rows = [
            (
                e.uuid, e.address, "voter" if m.voter else "being added",
                "leader" if e.leader else "", "yes" if e.alive else "no", e.version,
            )
            for m, e in self._entries()
        ]  # fmt: skip
        headings = ("uuid", "address", "member", "role", "alive", "version")
        return Listing("masters", headings, rows)

    def _entries(self) -> list[tuple[Member, pb.ServerEntry]]:
        config = self._state.committed
        leader = None if self._state.leading is None else self._state.leading.status().leader
        if config is None:
            return []
        return list(zip(config.members, self._peers.entries(leader, config.members), strict=True))

    @property
    def removed(self) -> bool:
        """True if it was a master and has to be added again."""
        return self._state.presence in (ReplicaPresence.REMOVED, ReplicaPresence.HALF)

    def header(self) -> ResponseHeader:
        """Return the header of heartbeat responses."""
        opened, leading, cluster = self._identity.instance, self._state.leading, self._state.cluster
        config = self._peers.group() if self._state.committed is None else self._state.committed
        return ResponseHeader(
            master_uuid=opened.uuid,
            cluster_id=opened.cluster_id,
            catalog_incarnation="" if cluster is None else cluster.catalog_incarnation,
            term=0 if leading is None else leading.status().term,
            master_addresses=voters(config) if config else (),
        )


def voters(config: Configuration) -> tuple[str, ...]:
    """Return the addresses of the voters: a non-voter that is being added may never become a master."""
    return tuple(m.address for m in config.members if m.voter)
