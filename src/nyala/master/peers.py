"""The other masters: who they are, when they last answered, and the group that fresh masters agree on.

Rules: asks with the same calls as anyone (ServerInfo, MasterStatus); nothing here is replicated.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nyala.common.errors import Forbidden, InvalidArgument, NyalaError
from nyala.common.ids import ServerUuid
from nyala.env.env import Env
from nyala.raft import membership
from nyala.raft.membership import Configuration, Member
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Peer:
    """Another master as this one sees it.

    Attributes:
        address: public address, as configured.
        info: what it last said of itself; None until it answered.
        status: its last MasterStatus.
        heard_us: when it last answered; monotonic.
    """

    address: str
    info: pb.ServerInfoResponse | None = None
    status: pb.MasterStatusResponse | None = None
    heard_us: int = 0


class MasterPeers:
    """Asks every other master how it is, again and again. On the loop only.

    Args:
        env: calls, clock, tasks.
        own: this master's own registration.
        masters: public addresses of all masters, this one among them.
        interval_ms: between two questions to one master.
        unresponsive_us: a master that was silent for so long is not alive.
    """

    def __init__(
        self,
        env: Env,
        own: Callable[[], pb.ServerInfoResponse],
        masters: Sequence[str],
        interval_ms: int,
        unresponsive_us: int,
    ) -> None:
        self._env = env
        self._own = own
        self._interval_ms = interval_ms
        self._unresponsive_us = unresponsive_us
        self._masters = tuple(masters)
        self._peers: dict[str, Peer] = {}

    def start(self) -> None:
        """Begin to ask."""
        for address in self._masters:
            if address != self._own().address:
                self._peers[address] = Peer(address)
                self._env.tasks.spawn(self._watch(self._peers[address]), f"watch {address}")

    async def _watch(self, peer: Peer) -> None:
        rpc, timeout_ms = self._env.rpc, max(1000, 2 * self._interval_ms)
        while True:
            try:
                peer.info = await rpc.call(
                    peer.address,
                    methods.SERVER_INFO,
                    pb.ServerInfoRequest(),
                    timeout_ms=timeout_ms,
                )
                peer.status = await rpc.call(
                    peer.address,
                    methods.MASTER_STATUS,
                    pb.MasterStatusRequest(),
                    timeout_ms=timeout_ms,
                )
                peer.heard_us = self._env.clock.monotonic_us()
            except NyalaError as err:
                log.debug("master %s does not answer: %s", peer.address, err)
            await self._env.tasks.sleep_ms(self._interval_ms)

    def missing(self) -> list[str]:
        """Return the addresses of the masters that have never answered."""
        return [p.address for p in self._peers.values() if p.status is None]

    def first_configuration(self) -> Configuration:
        """Return the group that a fresh master joins, once every master has answered.

        All fresh masters make the same one of what they told each other. An address list that
        differs is refused before anything is made: two lists could make two majorities.

        Raises:
            InvalidArgument: an address is no master, or has another list of masters, or is this one.
            Forbidden: the masters form a cluster already, without this one.
        """
        assert not self.missing(), f"before {self.missing()} answered"
        own = self._own()
        members = [_member(own)]
        for peer in self._peers.values():
            assert peer.info is not None, peer
            assert peer.status is not None, peer
            if peer.info.role != "master":
                raise InvalidArgument(f"{peer.address} is a {peer.info.role}, not a master")
            self._check_status(peer, peer.status, own)
            members.append(_member(peer.info))
        return membership.initial(members)

    def _check_status(
        self, peer: Peer, status: pb.MasterStatusResponse, own: pb.ServerInfoResponse
    ) -> None:
        theirs = sorted(m.address for m in status.consensus.members)
        if theirs != sorted(self._masters):
            raise InvalidArgument(
                f"this master was started with the masters {', '.join(sorted(self._masters))}, and "
                f"{peer.address} with {', '.join(theirs)}; start all with the same list"
            )
        uuids = [m.uuid for m in status.consensus.members]
        if all(uuids) and own.uuid not in uuids:
            raise Forbidden(
                f"the masters have a catalog already, in which this one ({own.uuid}) has no part: its "
                f"data directory is new, and {own.address} belongs to another master's data"
            )

    def entries(self, leader: str | None, members: Sequence[Member]) -> list[pb.ServerEntry]:
        """Return all masters of a configuration, for a list of servers.

        Args:
            leader: uuid of the leader.
            members: the configuration.
        """
        own, now_us = self._own(), self._env.clock.monotonic_us()
        entries = []
        for member in members:
            if member.uuid == own.uuid:
                info, alive, age_us = own, True, 0
            else:
                info, alive, age_us = self._seen(member, now_us)
            entries.append(
                pb.ServerEntry(
                    uuid=member.uuid,
                    role="master",
                    address=member.address,
                    peer_address=member.peer_address,
                    web_address=info.web_address,
                    location=info.location,
                    version=info.version,
                    alive=alive,
                    last_heartbeat_ms=age_us // 1000,
                    leader=member.uuid == leader,
                )
            )
        return entries

    def _seen(self, member: Member, now_us: int) -> tuple[pb.ServerInfoResponse, bool, int]:
        peer = self._peers.get(member.address)
        if peer is None or peer.info is None or peer.info.uuid != member.uuid:
            return pb.ServerInfoResponse(), False, now_us
        age_us = now_us - peer.heard_us
        return peer.info, age_us < self._unresponsive_us, age_us


def _member(info: pb.ServerInfoResponse) -> Member:
    return Member(ServerUuid(info.uuid), info.peer_address, info.address)
