"""The other masters: their addresses, their liveness, and the first configuration of a new group.

They are polled over the stream port (PollMaster): their answer is that of MasterStatus, which clients call.
Nothing here is replicated.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nyala.common.errors import Forbidden, InvalidArgument, NyalaError
from nyala.common.ids import OpId, ServerUuid
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.raft import membership
from nyala.raft.membership import Configuration, Member
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)

SETTLED_INTERVALS = 4
"""Heartbeat intervals between two polls of a master that answers, by one that is a member of the group."""


@dataclass(slots=True)
class Peer:
    """Another master, as this one knows it.

    Attributes:
        address: public address, as configured.
        info: its last registration; None until it has answered.
        status: its last answer.
        config: the committed configuration in it; None: a new master, which has none yet.
        answered_us: time of its last answer, monotonic.
    """

    address: str
    info: pb.ServerInfoResponse | None = None
    status: pb.MasterStatusResponse | None = None
    config: Configuration | None = None
    answered_us: int = 0


class MasterPeers:
    """Poller of the other masters. On the loop only.

    Args:
        env: calls, clock, tasks.
        own: this master's own registration.
        masters: public addresses of all masters, this one among them, as given at its start.
        options: options of this master.
    """

    def __init__(
        self,
        env: Env,
        own: Callable[[], pb.ServerInfoResponse],
        masters: Sequence[str],
        options: Options,
    ) -> None:
        self._env = env
        self._own = own
        self._interval_ms = options.server_heartbeat_ms
        self._unresponsive_us = options.tserver_unresponsive_ms * 1000
        self._masters = tuple(masters)
        self._peers: dict[str, Peer] = {}

    def start(self) -> None:
        """Start polling the masters given at the start."""
        self.follow(self._masters)

    def follow(self, addresses: Iterable[str]) -> None:
        """Poll the masters at these addresses from now on, and no others."""
        wanted = [a for a in dict.fromkeys(addresses) if a and a != self._own().address]
        for removed in [a for a in self._peers if a not in wanted]:
            del self._peers[removed]
        for address in wanted:
            if address not in self._peers:
                self._peers[address] = Peer(address)
                self._env.tasks.spawn(self._watch(self._peers[address]), f"watch {address}")

    async def _watch(self, peer: Peer) -> None:
        rpc, timeout_ms = self._env.rpc, max(1000, 2 * self._interval_ms)
        while self._peers.get(peer.address) is peer:
            pause_ms = self._interval_ms
            try:
                peer.status = await rpc.call(
                    peer.address,
                    methods.POLL_MASTER,
                    pb.MasterStatusRequest(),
                    timeout_ms=timeout_ms,
                )
                peer.info, peer.config = peer.status.server, _committed(peer.status)
                peer.answered_us = self._env.clock.monotonic_us()
                pause_ms = self._pause_ms()
            except NyalaError as err:
                log.debug("master %s does not answer: %s", peer.address, err)
            except Exception as bug:  # the task's top: without it this master is not polled again
                log.error("the answer of master %s was not read", peer.address, exc_info=bug)
            await self._env.tasks.sleep_ms(pause_ms)

    def _pause_ms(self) -> int:
        """Return the pause after an answer. A master that has not joined the group yet waits for its news."""
        if not self._own().cluster_id:
            return self._interval_ms
        return max(
            self._interval_ms,
            min(SETTLED_INTERVALS * self._interval_ms, self._unresponsive_us // 3000),
        )

    @property
    def own(self) -> pb.ServerInfoResponse:
        """This master's own registration."""
        return self._own()

    def missing(self) -> list[str]:
        """Return the addresses of the masters that have never answered."""
        return [p.address for p in self._peers.values() if p.status is None]

    def group(self) -> Configuration | None:
        """Return the newest committed configuration that a master of this cluster reports; None: none."""
        own, found = self._own().cluster_id, None
        for peer in self._peers.values():
            status = peer.status
            if status is None or (own and status.cluster_id and status.cluster_id != own):
                continue
            if peer.config is not None and (found is None or peer.config.id > found.id):
                found = peer.config
        return found

    def registrations(self) -> list[pb.ServerInfoResponse]:
        """Return the registrations of the other masters that have answered recently."""
        now_us = self._env.clock.monotonic_us()
        recent = (p for p in self._peers.values() if now_us - p.answered_us < self._unresponsive_us)
        return [p.info for p in recent if p.info is not None]

    def first_configuration(self) -> Configuration:
        """Return the group that a fresh master joins, once every master has answered.

        All new masters derive the same one from their answers. A differing list of addresses is refused
        before anything is created: two lists could form two majorities.

        Raises:
            InvalidArgument: an address is not that of a master, is this one's, or its master has another
                list.
        """
        assert not self.missing(), f"before {self.missing()} answered"
        own = self._own()
        members = [_member(own)]
        for peer in self._peers.values():
            assert peer.info is not None, peer
            assert peer.status is not None, peer
            if peer.info.role != "master":
                raise InvalidArgument(f"{peer.address} is a {peer.info.role}, not a master")
            their_masters = sorted(m.address for m in peer.status.consensus.members)
            if their_masters != sorted(self._masters):
                raise InvalidArgument(
                    f"this master was started with the masters {', '.join(sorted(self._masters))}, "
                    f"and {peer.address} with {', '.join(their_masters)}; start all with the same list"
                )
            members.append(_member(peer.info))
        return membership.initial(members)

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
        age_us = now_us - peer.answered_us
        return peer.info, age_us < self._unresponsive_us, age_us


def _committed(status: pb.MasterStatusResponse) -> Configuration | None:
    """Return the committed configuration that a master reports; None: it reports none."""
    members = status.consensus.members
    if not members or not all(m.uuid for m in members):
        return None  # it is new: these are the masters that it was started with
    return convert.configuration_from_proto(status.consensus)


def check_address(own: pb.ServerInfoResponse, group: Configuration) -> None:
    """Check that the group of masters has no other member at this address.

    Raises:
        Forbidden: the group has another master at this address.
    """
    if any(m.address == own.address for m in group.members):
        raise Forbidden(
            f"the masters have a catalog already, and this one ({own.uuid}) is not a member: its data "
            f"directory is new, and {own.address} is the address of another master. Start it with that "
            "master's data directory, or remove that master first: nyala master remove"
        )


def excluded(uuid: ServerUuid, known: OpId, group: Configuration | None) -> bool:
    """Return whether a committed configuration newer than `known` does not have this master.

    Args:
        uuid: uuid of the master.
        known: op id of the newest configuration in its own log.
        group: the newest configuration that other masters report; None: none did.
    """
    return group is not None and group.id > known and group.get(uuid) is None


def _member(info: pb.ServerInfoResponse) -> Member:
    return Member(ServerUuid(info.uuid), info.peer_address, info.address)
