"""This master as a member of the masters' group: joins it, follows its role, and leaves it when removed.

Fresh masters wait in the background until all have answered, and then all make the same group. One that
meets a group in which it has no place waits until it is added: then it is filled by a copy. Level-triggered:
what this master is to be is derived, again and again, from its replica, and from what the others tell.
"""

import logging

from nyala.common.errors import InvalidArgument, NyalaError, Unavailable
from nyala.common.ids import NO_OP
from nyala.master.group import peers, replaced, startup_checks
from nyala.master.group.catalog_replica import Group, Here
from nyala.master.group.status import Place
from nyala.master.leader import Leading
from nyala.raft.membership import Configuration
from nyala.wire.proto import catalog_pb2 as cat

log = logging.getLogger(__name__)


class GroupMember(Place):
    """One master's membership; arguments as `Place`'s. On the loop only."""

    async def start(self, group: Group) -> None:
        """Open the sys catalog, or begin to join the others in the background.

        Raises:
            Corrupt: the sys catalog cannot be opened.
            InvalidArgument: this master takes a dead one's place, and has no copy of the catalog; or its list
                of masters was never that of its group.
        """
        opened = self._identity.instance
        if opened.replaces and not opened.initialised:  # it would vote as if nothing had been
            raise InvalidArgument(
                f"this master was given the uuid of a dead one, {opened.uuid}, and has no catalog: copy it "
                "from the leader with nyala local_replica copy_from_remote catalog ADDRESS, then start it"
            )
        self._here = await group.here()
        if (config := group.config()) is not None and opened.initialised:
            startup_checks.check(self._addresses, config, opened)
        self._group = group
        self._peers.start()
        if self._here is Here.NOTHING and opened.initialised:
            await group.open_sys_catalog(None)  # it is gone
        if self._here is Here.REPLICA:
            await self._follow(group, None)
        self._env.tasks.spawn(self._live(group), "be a master")

    async def stop(self) -> None:
        """Stop leading and close the group; files stay as they are."""
        self._stopped = True
        self._drop()
        if self._group is not None:
            await self._group.close()

    # ---- from one look to the next -----------------------------------------------------------------

    async def _live(self, group: Group) -> None:
        while not self._stopped and not isinstance(self.failure, InvalidArgument):
            try:
                await self._look(group)
            except NyalaError as err:
                log.warning("this master's place among the masters: %s; trying again", err)
            except OSError as err:
                self._fail(Unavailable(f"the data directory cannot be written: {err}"))
            await self._env.tasks.sleep_ms(self._options.look_ms)

    async def _look(self, group: Group) -> None:
        if self._removed(group):
            self._drop()
            log.warning("this master was removed from the masters' group; its catalog is deleted")
            await group.delete()
        self._here = await group.here()
        if self._here is Here.REPLICA:
            self._check_place(group)
            if self.leading is None:
                await self._follow(group, None)
            await self._follow_members(group)
            if not isinstance(self.failure, InvalidArgument):  # for good
                self.failure = None  # it was given a place, or its disk can be written again
            return
        self._drop()
        told = self._peers.group()
        if told is not None and told != self._followed:
            self._followed = told
            self._peers.follow([*self._addresses, *(m.address for m in told.members)])
        fresh = self._here is Here.NOTHING and not self._identity.instance.initialised
        if fresh and self.failure is None and not group.being_copied:
            await self._form(group, told)

    def _check_place(self, group: Group) -> None:
        """Take part no more once another server has this one's place; see `replaced.check`."""
        try:
            replaced.check(self._peers.own, group.config(), self._peers.group())
        except InvalidArgument as err:
            self._fail(err)
            self._drop()
            group.fail(err)
            raise

    def _removed(self, group: Group) -> bool:
        """Whether this master has a catalog and is none any more, by its own log or by the others' word."""
        config, uuid = group.config(), self._identity.uuid
        if config is None or group.being_copied:
            return False
        return config.get(uuid) is None or peers.excluded(uuid, config.id, self._peers.group())

    async def _form(self, group: Group, told: Configuration | None) -> None:
        """First start: make the group that all of them make, when all are known; or wait for a place."""
        try:
            if told is not None and told.get(self._identity.uuid) is None:
                peers.check_stranger(self._peers.own, told)
            elif told is not None and told.id != NO_OP:
                return  # it was added to a group that is there, and waits for its copy
            elif not self._peers.missing():
                await self._follow(group, self._peers.first_configuration())
        except NyalaError as err:
            self._fail(err)

    async def _follow(self, group: Group, first: Configuration | None) -> None:
        """Open the sys catalog, or make it with its first configuration, and follow the role."""
        await group.open_sys_catalog(first)
        known = tuple(sorted(self._addresses)) in self._identity.instance.masters
        await self._identity.learn(initialised=True, masters=() if known else self._addresses)
        leading = self.leading = Leading(
            self._env,
            group.sys_catalog,
            group.status,
            self._servers,
            self._options,
            group.followed(),
        )
        self._here, self._followed = Here.REPLICA, None
        await self._follow_members(group)
        leading.start()
        self._env.tasks.spawn(self._learn_cluster(group, leading), "learn the cluster's id")

    def _drop(self) -> None:
        if self.leading is not None:
            self.leading.stop()
            self.leading = None

    async def _follow_members(self, group: Group) -> None:
        """The committed configuration says who the masters are: keep that, and ask those."""
        config = group.config()
        if config is None or config == self._followed:
            return
        masters = [m.address for m in config.members]
        await self._identity.learn(masters=masters)
        self._followed = config
        self._peers.follow(masters)

    async def _learn_cluster(self, group: Group, leading: Leading) -> None:
        """Read the cluster's record from this master's own replica, leader or not, until it is there."""
        found: cat.ClusterRecord | None = None
        while found is None:
            if self.leading is not leading:
                return
            found = await group.cluster()
            if found is None:
                await self._env.tasks.sleep_ms(self._options.look_ms)
        try:
            await self._identity.learn(cluster_id=found.cluster_id)
        except NyalaError as err:
            self._fail(err)
            return
        except OSError as err:
            # Not fatal: it is written at the next start; this process knows it now.
            log.error("the cluster's id was not written into the data directory: %s", err)
        self._cluster = found
