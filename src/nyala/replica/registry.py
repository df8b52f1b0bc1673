"""The replicas of a process by group, and the groups that are being created, copied or deleted.

On the loop only.
"""

from nyala.common.errors import NotFound, Unavailable
from nyala.common.ids import TabletId
from nyala.replica.context import ReplicaContext
from nyala.replica.member.bootstrap import Opened
from nyala.replica.replica import Replica

DELETED_KEPT = 1000
"""Number of tablets deleted for good that are remembered, so that an order which was delayed in this process
or on its way does not create them again. Orders of earlier leader masters are refused by their fence, and a
replica that is created after all has no tablet in the catalog: the masters delete it again.
"""


class ReplicaRegistry:
    """The replicas of a process.

    Args:
        context: the process.
        replicas: by group; changed only by this class once the process runs.

    Attributes:
        replicas: as given.
        closed: the server stops; no replica is created or deleted any more.
    """

    def __init__(self, context: ReplicaContext, replicas: dict[TabletId, Replica]) -> None:
        self.replicas = replicas
        self.closed = False
        self._context = context
        self._in_transition: dict[TabletId, None] = {}
        self._deleted: dict[TabletId, None] = {}  # for good, oldest first

    def find(self, group: TabletId) -> Replica | None:
        """Return the replica of a group, whatever its state, or None."""
        return self.replicas.get(group)

    def get(self, group: TabletId) -> Replica:
        """Return the replica of a group, whatever its state.

        Raises:
            NotFound: this server has none, and no tombstone of one.
        """
        if group not in self.replicas:
            raise NotFound(f"this server has no replica of tablet {group}")
        return self.replicas[group]

    def reserve(self, group: TabletId) -> None:
        """Begin a transition of a group: at most one of create, copy and delete at a time.

        Raises:
            NotFound: the tablet was deleted for good.
            Unavailable: one is under way, the log has failed, or the server stops.
        """
        if self.closed:
            raise Unavailable("this server is stopping; ask another one")
        if self._context.wal.failed is not None:
            raise Unavailable(
                f"this server's log is broken: {self._context.wal.failed}; replace the disk"
            )
        if group in self._deleted:
            raise NotFound(f"tablet {group} was deleted for good; this server creates it no more")
        if group in self._in_transition:
            raise Unavailable(f"{group} is being created, copied or deleted here; ask again")
        self._in_transition[group] = None

    def free(self, group: TabletId) -> None:
        """End the transition of a group."""
        del self._in_transition[group]

    def add(self, group: TabletId, opened: Opened) -> Replica:
        """Add a replica that was created or copied, and run it; return it."""
        replica = Replica(self._context, group)
        self.replicas[group] = replica
        replica.start(opened)
        self._context.schedule(group)
        self._context.changed(group)
        return replica

    def remove(self, group: TabletId) -> None:
        """Remove a replica that was deleted for good."""
        del self.replicas[group]
        self._deleted[group] = None
        if len(self._deleted) > DELETED_KEPT:
            del self._deleted[next(iter(self._deleted))]
        self._context.counters.deleted.inc()
        self._context.changed(group)
