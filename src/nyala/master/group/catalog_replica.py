"""The data directory of a master, and its replica of the sys catalog."""

from collections.abc import Callable
from enum import Enum

from nyala.common.errors import Corrupt, NotFound, NyalaError, Unavailable
from nyala.common.ids import SYS_CATALOG, ServerUuid, TabletId
from nyala.common.metrics import Metrics
from nyala.env.env import Env
from nyala.env.server_clock import ServerClock
from nyala.env.tasks import Lane
from nyala.master.catalog import sys_catalog
from nyala.master.catalog.follower_catalog import FollowerCatalog
from nyala.master.catalog.records.parsing import parse
from nyala.master.catalog.records.rows import CLUSTER_ROW, KIND_CLUSTER
from nyala.master.catalog.sys_catalog import SysCatalog
from nyala.master.config import MasterConfig
from nyala.raft.membership import Configuration
from nyala.replica.copy.manager import is_partial_copy
from nyala.replica.host import ReplicaHost
from nyala.replica.replica import Replica
from nyala.replica.state_machine import StateMachine, Transport
from nyala.replica.status import ReplicaStatus, State
from nyala.tablet.tablet import Tablet
from nyala.wire.proto import catalog_pb2 as cat

CLIENT_ID_BITS = 128


async def open_host(
    env: Env,
    config: MasterConfig,
    uuid: ServerUuid,
    clock: ServerClock,
    transport: Transport,
    metrics: Metrics,
    group: Callable[[], Configuration | None],
    changed: Callable[[], None],
) -> ReplicaHost:
    """Open the log of a formatted data directory, and the sys catalog's replica if it is there.

    Args:
        env: the environment: clock, tasks, files, calls.
        config: addresses, data directory, options.
        uuid: uuid of this master.
        clock: clock of this master.
        transport: asyncio transport of the peer port.
        metrics: registry of this process.
        group: returns the newest configuration of the masters that another master reports.
        changed: called when configuration, leader, role or state of the sys catalog's replica changed.

    Raises:
        Corrupt: the log cannot be used. OSError: the disk failed, or is full.
    """

    def open_machine(group: TabletId, directory: str) -> StateMachine:
        if group != SYS_CATALOG:
            raise Corrupt(f"a master's directory holds a replica of {group}")
        return Tablet.open(env.files, directory)

    async def members(_group: TabletId, _sender: ServerUuid) -> Configuration | None:
        return group()

    return await ReplicaHost.open(
        env, config.options, config.dir, uuid, transport, clock, open_machine, metrics=metrics,
        on_change=lambda _: changed(), members=members,
    )  # fmt: skip


class ReplicaPresence(Enum):
    """State of the sys catalog's replica in this master's directory."""

    NOTHING = "nothing"
    REMOVED = "a tombstone: it was removed from the masters"
    HALF = "an incomplete copy, which a crash left"
    REPLICA = "a replica, FAILED too"


class MasterReplica:
    """This master's replica of the sys catalog, and the host that runs it. On the loop only."""

    def __init__(self, env: Env, config: MasterConfig, host: ReplicaHost) -> None:
        self._env = env
        self._options = config.options
        self._host = host
        self._replica: Replica | None = None

    async def open_sys_catalog(self, first: Configuration | None) -> None:
        """Open the sys catalog's replica, or create it.

        Args:
            first: configuration with which a new master creates it; None: it must exist.

        Raises:
            Corrupt: the sys catalog of this master is missing.
        """
        self._replica = self._host.find(SYS_CATALOG)
        if self._replica is None and first is not None:
            self._replica = await self._host.create_replica(SYS_CATALOG, first, self._create)
        if self._replica is None:
            raise Corrupt(
                "this master's sys catalog is gone from its data directory, and a new one would lack "
                "its votes; restore the directory, or replace this master"
            )

    async def presence(self) -> ReplicaPresence:
        """Return the presence of the replica in the directory, which a copy may have changed."""
        found = self._host.find(SYS_CATALOG)
        if found is None:
            return ReplicaPresence.NOTHING
        if found.state is State.TOMBSTONED:
            return ReplicaPresence.REMOVED
        if await is_partial_copy(found):
            return ReplicaPresence.HALF
        return ReplicaPresence.REPLICA

    @property
    def is_current(self) -> bool:
        """False if the replica that was opened was deleted since, and a copy may have taken its place."""
        return self._host.find(SYS_CATALOG) is self._replica

    @property
    def being_copied(self) -> bool:
        """True if a copy to this master is under way, or waits to become a member."""
        return self._host.copies.waiting(SYS_CATALOG)

    def config(self) -> Configuration | None:
        """Return the committed configuration of the replica; None: it does not run."""
        found = self._host.find(SYS_CATALOG)
        if found is None or found.member is None:
            return None
        return found.member.node.committed_config

    def fail(self, why: NyalaError) -> None:
        """Stop voting and acknowledging; the files stay."""
        self._host.get(SYS_CATALOG).fail(why)

    async def delete(self) -> None:
        """Leave a tombstone of the replica; durable on return. Raises as `ReplicaHost.delete_replica`."""
        await self._host.delete_replica(SYS_CATALOG)

    def _create(self, directory: str) -> StateMachine:
        return Tablet.create(self._env.files, directory, sys_catalog.tablet_info())

    @property
    def replica(self) -> Replica:
        """This master's member of the group."""
        assert self._replica is not None, "used before open_sys_catalog"
        return self._replica

    def status(self) -> ReplicaStatus:
        """Return the status of the replica."""
        return self.replica.status()

    def sys_catalog(self) -> SysCatalog:
        """Return the sys catalog for a new term of this leader."""
        return SysCatalog(
            self._env,
            self.replica,
            self._tablet(),
            client_id=self._env.random.getrandbits(CLIENT_ID_BITS).to_bytes(16, "big"),
            timeout_ms=self._options.catalog_timeout_ms,
            max_batch_bytes=min(self._options.catalog_batch_bytes, self._options.write_max_bytes),
        )

    def followed(self) -> FollowerCatalog:
        """Return the catalog of this replica, leader or not."""
        view = lambda: self._tablet().view()  # noqa: E731
        return FollowerCatalog(self._env, self.replica, view, self._options.catalog_timeout_ms)

    async def cluster(self) -> cat.ClusterRecord | None:
        """Return the cluster's record from this replica, leader or not; None: it is not written yet."""
        stamp = self.status().applied_stamp
        if not stamp:
            return None
        try:
            view = self._tablet().view()
        except (NotFound, Unavailable):
            return None
        run = self._env.tasks.run
        row = await run(Lane.COMPUTE, sys_catalog.find, view, stamp, KIND_CLUSTER, CLUSTER_ROW)
        found = None if row is None else parse(row)
        assert found is None or isinstance(found, cat.ClusterRecord), found
        return found

    async def close(self) -> None:
        """Stop the replica and close its files."""
        await self._host.close()

    def _tablet(self) -> Tablet:
        machine = self.replica.machine
        assert isinstance(machine, Tablet), machine
        return machine
