"""Membership of this master in the masters' group: join, follow the role, leave when removed.

New masters wait in the background until all have answered, and then form the same group. A master that finds
a group without itself waits until it is added and gets a copy. Level-triggered: the state is derived each
time from its replica and from the reports of the other masters.
"""

import logging
from collections.abc import Sequence

from nyala.common.errors import InvalidArgument, NyalaError, Unavailable
from nyala.common.ids import NO_OP
from nyala.common.options import Options
from nyala.datadir.identity import Identity
from nyala.env.env import Env
from nyala.master.group import peers, replaced, startup_checks
from nyala.master.group.catalog_replica import MasterReplica, ReplicaPresence
from nyala.master.group.peers import MasterPeers
from nyala.master.group.status import MemberState, MemberStatus
from nyala.master.leader import MasterLeadership
from nyala.master.transactions.term import CoordinatorContext
from nyala.master.tservers import TServers
from nyala.raft.membership import Configuration
from nyala.wire.proto import catalog_pb2 as cat

log = logging.getLogger(__name__)


class GroupMember:
    """This master's membership in the masters' group. On the loop only.

    Args:
        env: the environment: clock, tasks, files, calls.
        identity: uuid and cluster of this master.
        peers: the other masters.
        servers: the tablet servers.
        addresses: public addresses of all masters, as given at the start.
        options: options of this master.

    Attributes:
        status: status of this master, for clients and servers.
    """

    def __init__(
        self,
        env: Env,
        identity: Identity,
        peers: MasterPeers,
        servers: TServers,
        addresses: Sequence[str],
        options: Options,
    ) -> None:
        self._env = env
        self._identity = identity
        self._peers = peers
        self._servers = servers
        self._addresses = tuple(addresses)
        self._options = options
        self._stopped = False
        self._state = MemberState()
        self.status = MemberStatus(identity, peers, self._addresses, self._state)

    @property
    def leading(self) -> MasterLeadership | None:
        """The leadership of this master; None until it has joined the masters' group."""
        return self._state.leading

    @property
    def failure(self) -> NyalaError | None:
        """Why this master cannot serve; None while it does or may."""
        return self._state.failure

    async def start(self, group: MasterReplica) -> None:
        """Open the sys catalog, or start joining the other masters in the background.

        Raises:
            Corrupt: the sys catalog cannot be opened.
            InvalidArgument: this master replaces a dead one and has no copy of the catalog yet; or its list
                of masters was never that of its group.
        """
        opened = self._identity.instance
        if opened.replaces and not opened.initialised:  # it would vote without its earlier votes
            raise InvalidArgument(
                f"this master was given the uuid of a dead one, {opened.uuid}, and has no catalog: copy it "
                "from the leader with nyala local_replica copy_from_remote catalog ADDRESS, then start it; "
                "if nyala master unsafe_rebuild was interrupted, empty the directory and repeat that command"
            )
        self._state.presence = await group.presence()
        if (config := group.config()) is not None and opened.initialised:
            startup_checks.check(self._addresses, config, opened)
        self._state.group = group
        self._peers.start()
        if self._state.presence is ReplicaPresence.NOTHING and opened.initialised:
            await group.open_sys_catalog(None)  # it is missing: raises Corrupt
        if self._state.presence is ReplicaPresence.REPLICA:
            await self._follow(group, None)
        self._env.tasks.spawn(self._run(group), "be a master")

    def role_changed(self) -> None:
        """Follow the role of this master's replica now: it may have changed."""
        if self._state.leading is not None:
            self._state.leading.role_changed()

    async def stop(self) -> None:
        """Stop leading and close the group; files stay as they are."""
        self._stopped = True
        self._stop_leading()
        if self._state.group is not None:
            await self._state.group.close()

    async def _run(self, group: MasterReplica) -> None:
        while not self._stopped and not isinstance(self._state.failure, InvalidArgument):
            try:
                await self._update(group)
            except NyalaError as err:
                log.warning("the membership of this master cannot be updated: %s; retrying", err)
            except OSError as err:
                self._fail(Unavailable(f"the data directory cannot be written: {err}"))
            except Exception as bug:  # the task's top: without it this master follows no change
                log.error("the membership of this master was not updated", exc_info=bug)
            await self._env.tasks.sleep_ms(_pause_ms(self._state, group, self._options))

    async def _update(self, group: MasterReplica) -> None:
        if self._removed(group):
            self._stop_leading()
            log.warning("this master was removed from the masters' group; its catalog is deleted")
            await group.delete()
        self._state.presence = await group.presence()
        current = self._state.leading is None or group.is_current  # else it was added again
        if current and self._state.presence is ReplicaPresence.REPLICA:
            self._check_not_replaced(group)
            if self._state.leading is None:
                await self._follow(group, None)
            await self._follow_members(group)
            if not isinstance(self._state.failure, InvalidArgument):  # permanent
                self._state.failure = None  # it is a member, or its disk can be written again
            return
        self._stop_leading()
        learned = self._peers.group()
        if learned is not None and learned != self._state.committed:
            self._state.committed = learned
            self._peers.follow([*self._addresses, *(m.address for m in learned.members)])
        nothing = self._state.presence is ReplicaPresence.NOTHING
        fresh = nothing and not self._identity.instance.initialised
        if fresh and self._state.failure is None and not group.being_copied:
            await self._join_group(group, learned)

    def _check_not_replaced(self, group: MasterReplica) -> None:
        """Stop once another server has this master's uuid; see `replaced.check`."""
        try:
            replaced.check(self._peers.own, group.config(), self._peers.group())
        except InvalidArgument as err:
            self._fail(err)
            self._stop_leading()
            group.fail(err)
            raise

    def _removed(self, group: MasterReplica) -> bool:
        """Return whether this master was removed, by its own log or by the other masters' reports."""
        config, uuid = group.config(), self._identity.uuid
        if config is None or group.being_copied:
            return False
        return config.get(uuid) is None or peers.excluded(uuid, config.id, self._peers.group())

    async def _join_group(self, group: MasterReplica, learned: Configuration | None) -> None:
        """On the first start, form the group once all masters have answered, or wait to be added to one."""
        try:
            if learned is not None and learned.get(self._identity.uuid) is None:
                peers.check_address(self._peers.own, learned)
            elif learned is not None and learned.id != NO_OP:
                return  # it was added to an existing group, and waits for its copy
            elif not self._peers.missing():
                await self._follow(group, self._peers.first_configuration())
        except NyalaError as err:
            self._fail(err)

    async def _follow(self, group: MasterReplica, first: Configuration | None) -> None:
        """Open or create the sys catalog, and start following the role of its replica."""
        await group.open_sys_catalog(first)
        known = tuple(sorted(self._addresses)) in self._identity.instance.masters
        await self._identity.learn(initialised=True, masters=() if known else self._addresses)
        leading = self._state.leading = MasterLeadership(
            self._env,
            group.sys_catalog,
            group.status,
            self._servers,
            self._options,
            CoordinatorContext(self._identity.clock, self._peers.registrations),
            group.followed(),
        )
        self._state.presence, self._state.committed = ReplicaPresence.REPLICA, None
        await self._follow_members(group)
        leading.start()
        self._env.tasks.spawn(self._learn_cluster(group, leading), "learn the cluster's id")

    def _fail(self, err: NyalaError) -> None:
        if self._state.failure is None:
            log.error("this master cannot join the others: %s", err)
        self._state.failure = err

    def _stop_leading(self) -> None:
        if self._state.leading is not None:
            self._state.leading.stop()
            self._state.leading = None

    async def _follow_members(self, group: MasterReplica) -> None:
        """Save the masters of the committed configuration, and poll them."""
        config = group.config()
        if config is None or config == self._state.committed:
            return
        await self._identity.learn(masters=(masters := [m.address for m in config.members]))
        self._state.committed = config
        self._peers.follow(masters)

    async def _learn_cluster(self, group: MasterReplica, leading: MasterLeadership) -> None:
        """Read the cluster's record from this master's own replica, leader or not, until it is there."""
        found: cat.ClusterRecord | None = None
        while found is None:
            if self._state.leading is not leading:
                return
            try:
                found = await group.cluster()
            except Exception as bug:  # without the cluster's id this master serves no one
                log.error("the cluster's id was not read", exc_info=bug)
            if found is None:
                await self._env.tasks.sleep_ms(self._options.raft_tick_ms)
        try:
            await self._identity.learn(cluster_id=found.cluster_id)
        except NyalaError as err:
            self._fail(err)
            return
        except OSError as err:  # not fatal: written at the next start; this process knows it now
            log.error("the cluster's id was not written into the data directory: %s", err)
        self._state.cluster = found


def _pause_ms(state: MemberState, group: MasterReplica, options: Options) -> int:
    """Return the pause before the next update: longer while this master is a member and nothing changes.

    A removal, or a change of members, takes effect in the group by itself.

    Args:
        state: of this master.
        group: its replica.
        options: of this master.
    """
    member = state.presence is ReplicaPresence.REPLICA and state.failure is None
    settled = member and state.committed is not None and state.committed == group.config()
    return options.server_heartbeat_ms if settled else options.raft_tick_ms
