"""What is said of this master's place among the masters: to clients, servers and people."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from nyala.common.errors import NyalaError
from nyala.datadir.identity import Identity
from nyala.env.env import Env
from nyala.master.group.catalog_replica import Group, Here
from nyala.master.group.peers import MasterPeers
from nyala.master.leader import Leading, LeadingOptions
from nyala.master.tservers import TServers
from nyala.raft.membership import Configuration
from nyala.raft.status import Role
from nyala.web.pages import Listing
from nyala.wire import convert
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MasterStatus:
    """What every master says of itself in each answer.

    Attributes:
        master_uuid: its id.
        cluster_id: empty until the first leader has minted it.
        catalog_incarnation: as `cluster_id`.
        term: current term of the sys catalog's group, as this master knows it.
        master_addresses: public addresses of all masters.
    """

    master_uuid: str
    cluster_id: str
    catalog_incarnation: str
    term: int
    master_addresses: tuple[str, ...]


class Place:
    """This master's place in the masters' group. On the loop only.

    Args:
        env: the outside world.
        identity: who this master is.
        peers: the other masters.
        servers: the tablet servers.
        addresses: public addresses of all masters, as it was told at its start.
        options: of leading.
    """

    def __init__(
        self,
        env: Env,
        identity: Identity,
        peers: MasterPeers,
        servers: TServers,
        addresses: Sequence[str],
        options: LeadingOptions,
    ) -> None:
        self._env = env
        self._identity = identity
        self._peers = peers
        self._servers = servers
        self._addresses = tuple(addresses)
        self._options = options
        self._group: Group | None = None
        self._cluster: cat.ClusterRecord | None = None
        self._followed: Configuration | None = None
        self._here = Here.NOTHING
        self._stopped = False
        self.leading: Leading | None = None
        self.failure: NyalaError | None = None

    def _fail(self, err: NyalaError) -> None:
        if self.failure is None:
            log.error("this master cannot join the others: %s", err)
        self.failure = err

    def why_waiting(self) -> str:
        """Return why this master has no sys catalog yet, in a sentence for clients."""
        if self.failure is not None:
            return f"this master cannot join the others: {self.failure}"
        if not self._identity.known or self._group is None:
            return "this master is starting; ask again"
        if self._here is Here.HALF:
            return "a copy of the catalog to this master was not completed; nyala master add goes on with it"
        told = self._peers.group()
        if self._here is Here.REMOVED or (told and not told.get(self._identity.uuid)):
            masters = ", ".join(m.address for m in told.members) if told else "not known here"
            was = "was removed from" if self._here is Here.REMOVED else "is not one of"
            own = self._peers.own.address
            return f"this master {was} the masters, which are {masters}; nyala master add {own} adds it"
        missing = self._peers.missing()
        if not missing:
            return "this master is starting; ask again"
        return f"this master is new and waits for the masters {', '.join(missing)} to answer"

    def status(self) -> pb.MasterStatusResponse:
        """Return what this master is to the group; without a place in it, whom it knows to be masters."""
        opened, leading = self._identity.instance, self.leading
        answer = pb.MasterStatusResponse(uuid=opened.uuid, cluster_id=opened.cluster_id)
        if leading is None:
            told = self._peers.group()
            if told is not None:
                answer.consensus.CopyFrom(convert.consensus_to_proto(told, 0, None))
            for address in self._addresses if told is None else ():
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

    def page(self) -> Listing:
        """Return the page of the masters, as this one knows them; it leads or not."""
        config = self._followed
        leader = None if self.leading is None else self.leading.status().leader
        rows = [
            (
                e.uuid, e.address, "voter" if m.voter else "being added",
                "leader" if e.leader else "", "yes" if e.alive else "no", e.version,
            )
            for m, e in zip(
                config.members, self._peers.entries(leader, config.members), strict=True
            )
        ] if config else []  # fmt: skip
        headings = ("uuid", "address", "member", "role", "alive", "version")
        return Listing("masters", headings, rows)

    @property
    def removed(self) -> bool:
        """Whether it was a master, and is none without being added again."""
        return self._here in (Here.REMOVED, Here.HALF)

    def standing(self) -> MasterStatus:
        """Return what this master says of itself in each answer to a heartbeat."""
        opened, leading, cluster = self._identity.instance, self.leading, self._cluster
        config = self._peers.group() if self._followed is None else self._followed
        return MasterStatus(
            master_uuid=opened.uuid,
            cluster_id=opened.cluster_id,
            catalog_incarnation="" if cluster is None else cluster.catalog_incarnation,
            term=0 if leading is None else leading.status().term,
            master_addresses=voters(config) if config else (),
        )


def voters(config: Configuration) -> tuple[str, ...]:
    """Return the addresses of those who decide: one that is being added may never come to be a master."""
    return tuple(m.address for m in config.members if m.voter)
