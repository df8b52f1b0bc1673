"""Reads under a leader's read lease: the time at which its latest rows can be read at once.

On the loop only.
"""

from nyala.common.ids import TabletId
from nyala.replica.context import ReplicaContext
from nyala.replica.member.applier import Applier
from nyala.replica.member.leadership_watch import LeadershipWatch
from nyala.replica.member.reading.read_lease import ReadLease
from nyala.replica.member.transactions.prepared import ANY_TIME, PreparedTransactions


class LeaseReads:
    """Reads of one member under its lease.

    Args:
        context: the process.
        group: group of the member.
        watch: reports whether the member has applied an entry of its own term.
        prepared: prepared transactions, which may be committed already at a time that is to be read.
        applier: has the stamp of the last entry applied.
        lease: the lease.
    """

    def __init__(
        self,
        context: ReplicaContext,
        group: TabletId,
        watch: LeadershipWatch,
        prepared: PreparedTransactions,
        applier: Applier,
        lease: ReadLease,
    ) -> None:
        self._context = context
        self._group = group
        self._watch = watch
        self._prepared = prepared
        self._applier = applier
        self._lease = lease

    def read_now(self) -> int:
        """See `Replica.read_now`."""
        if not self._watch.accepting or self._prepared.readable < ANY_TIME:
            return 0
        if not self._lease.holds():
            return 0
        if self._lease.renewal_due:
            self._lease.join_round(0)
            self._context.schedule(self._group)
        return self._applier.applied_stamp
