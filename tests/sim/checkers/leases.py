"""Check of read leases: no leader holds one when a leader of a later term is elected, or after that."""

from collections.abc import Callable, Iterable

from nyala.common.ids import TabletId
from nyala.replica.replica import Replica


class LeaseWatch:
    """Checker of all groups.

    It asks each leader as the leader asks itself: with its own clock, also while it is paused or isolated.

    Args:
        replicas: returns the replicas of all running processes.

    Attributes:
        elected: number of elections at which the other members were asked.
        held: number of steps at which some leader had a lease.
    """

    def __init__(self, replicas: Callable[[], Iterable[Replica]]) -> None:
        self._replicas = replicas
        self._terms: dict[TabletId, int] = {}
        self.elected = 0
        self.held = 0

    def leads(self, group: TabletId, term: int) -> None:
        """Note that a group has a leader in a term.

        Raises:
            AssertionError: a leader of an earlier term has a lease.
        """
        if term <= self._terms.get(group, 0):
            return
        self._terms[group] = term
        self.elected += 1
        self._check(group, term)

    def _check(self, group: TabletId, term: int) -> None:
        for replica in self._replicas():
            member = replica.member
            if replica.group == group and member is not None and member.node.term < term:
                assert not member.lease.holds(), (
                    f"{member.node.uuid} has a read lease in term {member.node.term} of {group}, which has a "
                    f"leader in term {term}"
                )

    def look(self) -> None:
        """Check all members, whatever happened before.

        Raises:
            AssertionError: as `leads`.
        """
        running = [r.member for r in self._replicas() if r.member is not None]
        for replica in self._replicas():
            member = replica.member
            if member is not None and member.node.is_leader:
                term = member.node.term
                self.elected += term > self._terms.get(replica.group, 0)
                self._terms[replica.group] = max(term, self._terms.get(replica.group, 0))
        self.held += any(m.lease.holds() for m in running)
        for group, term in self._terms.items():
            self._check(group, term)
