"""The search for the leader of one tablet: whose word is followed, and when the tablet is looked up again."""

from nyala.client.cluster.tablet_cache import TabletCache, TabletLocation
from nyala.client.deadline import is_cut_short
from nyala.common.errors import NotLeader, NyalaError


class LeaderSearch:
    """The search of one call. Runs on the client's loop.

    A replica that does not lead may name the leader, which is asked next. In a round each address is asked
    at most once by such a name: replicas that their group has removed learn of no election, and two of them
    may name each other. If no replica led in a round, the leader is forgotten, and the tablet is to be
    looked up.

    Args:
        locations: updates the leader.
        tablet: tablet of the call; updated in place.

    Attributes:
        reason: why the call was not served so far; for the error at the deadline.
    """

    def __init__(self, locations: TabletCache, tablet: TabletLocation) -> None:
        self._locations = locations
        self._tablet = tablet
        self._asked: set[str] = set()  # in this round
        self._known = False  # a replica has given a reason
        self.reason = "no replica of it is known"

    def refused(self, address: str, err: NotLeader) -> bool:
        """Record that a replica does not lead; return whether the leader that it names is asked next."""
        self._asked.add(address)
        self._locations.learn(self._tablet, asked=address, leader=err.leader, address=err.address)
        found = self._tablet.leader is not None and self._tablet.leader not in self._asked
        if not found:
            self._note(f"{address}: {err.message}")
        return found

    def failed(self, address: str, err: NyalaError, given_ms: int) -> None:
        """Record that a replica did not answer, or could not.

        Args:
            address: of the replica.
            err: error of the try.
            given_ms: time that it had, in milliseconds.
        """
        self._asked.add(address)
        self._locations.learn(self._tablet, asked=address, leader=None, address=None)
        if not (self._known and is_cut_short(err, given_ms)):
            self._note(f"{address}: {err.message}")

    def delayed(self, err: NyalaError) -> None:
        """Record that the leader asked to wait, or to send another request."""
        self._note(err.message)

    def look_up_failed(self, err: NyalaError) -> None:
        """Record that the masters did not say where the replicas are."""
        if not self.reason.endswith(err.message):
            self.reason = f"{self.reason}; {err.message}"

    def _note(self, reason: str) -> None:
        self.reason, self._known = reason, True

    def end_round(self) -> None:
        """Record that no replica led, nor the leader if it was asked; names are followed again."""
        if self._tablet.leader in self._asked:  # else another call has learned it in the meantime
            self._tablet.leader = None
        self._asked.clear()
