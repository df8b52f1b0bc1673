"""This master as a member of the masters' group: joins it at its first start, follows its role since.

Fresh masters wait in the background until all have answered, and then all make the same group. What is
said of this master, in MasterStatus and to tablet servers, is read here.
"""

import logging
from collections.abc import Sequence

from nyala.common.errors import InvalidArgument, NyalaError, Unavailable
from nyala.env.env import Env
from nyala.master.group import Group
from nyala.master.heartbeats import Standing
from nyala.master.leading import Leading, LeadingOptions
from nyala.master.peers import MasterPeers
from nyala.master.tservers import TServers
from nyala.raft.membership import Configuration
from nyala.raft.status import Role
from nyala.replica.identity import Identity
from nyala.wire import convert
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)


class GroupMember:
    """One master's membership. On the loop only.

    Args:
        env: the outside world.
        identity: who this master is.
        peers: the other masters.
        servers: the tablet servers.
        addresses: public addresses of all masters.
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
        self.leading: Leading | None = None
        self.failure: NyalaError | None = None

    async def start(self, group: Group) -> None:
        """Open the sys catalog, or begin to join the others in the background.

        Raises:
            Corrupt: the sys catalog cannot be opened.
            InvalidArgument: this master takes a dead one's place, and has no copy of the catalog.
        """
        opened = self._identity.instance
        if opened.replaces and not opened.initialised:  # it would vote as if nothing had been
            raise InvalidArgument(
                f"this master was given the uuid of a dead one, {opened.uuid}, and has no catalog: copy it "
                "from the leader with nyala local_replica copy_from_remote catalog ADDRESS, then start it"
            )
        self._group = group
        self._peers.start()
        if self._identity.instance.initialised:
            await self._follow(None)
        else:
            self._env.tasks.spawn(self._join(), "join the masters")

    async def stop(self) -> None:
        """Stop leading and close the group; files stay as they are."""
        if self.leading is not None:
            self.leading.stop()
        if self._group is not None:
            await self._group.close()

    async def _join(self) -> None:
        """First start: wait until all masters are known, then make the group that all of them make."""
        while self._peers.missing():
            await self._env.tasks.sleep_ms(self._options.look_ms)
        try:
            await self._follow(self._peers.first_configuration())
            self._identity.learn(initialised=True)
        except NyalaError as err:
            self._fail(err)
        except OSError as err:
            self._fail(Unavailable(f"the data directory cannot be written: {err}"))

    def _fail(self, err: NyalaError) -> None:
        log.error("this master cannot join the others: %s", err)
        self.failure = err

    async def _follow(self, first: Configuration | None) -> None:
        """Open the sys catalog, or make it with its first configuration, and follow the role."""
        group = self._group
        assert group is not None, "follows before it was started"
        await group.open_sys_catalog(first)
        self.leading = Leading(
            self._env,
            group.sys_catalog,
            group.status,
            self._servers,
            self._options,
            group.followed(),
        )
        self.leading.start()
        self._env.tasks.spawn(self._learn_cluster(group), "learn the cluster's id")

    async def _learn_cluster(self, group: Group) -> None:
        """Read the cluster's record from this master's own replica, leader or not, until it is there."""
        while True:
            found = await group.cluster()
            if found is not None:
                break
            await self._env.tasks.sleep_ms(self._options.look_ms)
        try:
            self._identity.learn(cluster_id=found.cluster_id)
        except NyalaError as err:
            self._fail(err)
            return
        except OSError as err:
            # Not fatal: it is written at the next start; this process knows it now.
            log.error("the cluster's id was not written into the data directory: %s", err)
        self._cluster = found

    def why_waiting(self) -> str:
        """Return why this master has no sys catalog yet, in a sentence for clients."""
        if self.failure is not None:
            return f"this master cannot join the others: {self.failure}"
        missing = self._peers.missing() if self._identity.known else []
        if not missing:
            return "this master is starting; ask again"
        return f"this master is new and waits for the masters {', '.join(missing)} to answer"

    def status(self) -> pb.MasterStatusResponse:
        """Return what this master is to the group; before it joined, the list that it was given."""
        opened, leading = self._identity.instance, self.leading
        answer = pb.MasterStatusResponse(uuid=opened.uuid, cluster_id=opened.cluster_id)
        if leading is None:
            for address in self._addresses:
                answer.consensus.members.add(address=address)
            return answer
        status = leading.status()
        answer.leader = status.role is Role.LEADER
        answer.ready = leading.current() is not None
        answer.term = status.term
        answer.error = status.error
        answer.consensus.CopyFrom(
            convert.consensus_to_proto(status.config, status.term, status.leader)
        )
        leader = None if status.leader is None else status.config.get(status.leader)
        if leader is not None:
            answer.leader_uuid, answer.leader_address = leader.uuid, leader.address
        return answer

    def standing(self) -> Standing:
        """Return what this master says of itself in each answer to a heartbeat."""
        opened, leading, cluster = self._identity.instance, self.leading, self._cluster
        return Standing(
            master_uuid=opened.uuid,
            cluster_id=opened.cluster_id,
            catalog_incarnation="" if cluster is None else cluster.catalog_incarnation,
            term=0 if leading is None else leading.status().term,
            master_addresses=self._addresses,
        )
