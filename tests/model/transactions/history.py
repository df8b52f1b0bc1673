"""Records of all answers and their times: the evidence of the judge."""

from typing import Any, NamedTuple

from tests.model.transactions.groups import Replica
from tests.model.transactions.tablet_state import Value


class Seen(NamedTuple):
    """An answered read.

    Attributes:
        kind: snapshot, look-up or stale.
        tablet: that was read.
        at: the time.
        begun: step in which it began.
        ended: step in which it was answered.
        fresh: it has to contain all that was acknowledged before it began.
        rows: the answer.
    """

    kind: str
    tablet: str
    at: int
    begun: int
    ended: int
    fresh: bool
    rows: dict[int, Value]


class Acknowledged(NamedTuple):
    """A commit or write that a client has been answered: the step, the stamp, its tablets."""

    step: int
    at: int
    tablets: tuple[str, ...]
    name: str


class History:
    """Records of one world.

    Attributes:
        reads: answered reads.
        acks: acknowledgements.
        denials: transactions that a client was answered to be not committed, never to be.
        marks: step and value of each mark that was sent with a prepare.
        removals: step in which a row was removed.
        feeds: time up to which a follower of changes has read, and the changes.
    """

    def __init__(self, world: Any) -> None:
        self.world = world
        self.reads: list[Seen] = []
        self.acks: list[Acknowledged] = []
        self.denials: set[str] = set()
        self.marks: list[tuple[int, int]] = []
        self.removals: dict[str, int] = {}
        self.feeds: dict[tuple[str, str], tuple[int, list[tuple[int, int, Value]]]] = {}
        self._writes: set[int] = set()
        self._named: set[str] = set()

    def first(self, write: int) -> bool:
        """Return whether a write arrives for the first time; stands for the exactly-once table."""
        new = write not in self._writes
        self._writes.add(write)
        return new

    def saw(self, kind: str, replica: Replica, at: int, begun: int, fresh: bool) -> None:
        """Record an answered read, and the changes up to its time.

        Args:
            kind: of the read.
            replica: that answered.
            at: time of the answer.
            begun: step in which it began.
            fresh: see `Seen`.
        """
        rows, name = replica.state.rows, replica.group.name
        now = self.world.time.now
        self.reads.append(Seen(kind, name, at, begun, now, fresh, rows.at(at)))
        since, fed = self.feeds.setdefault((name, kind), (0, []))
        if at > since and kind != "look-up":
            self.feeds[name, kind] = (at, fed + rows.changes(since, at))

    def acknowledged(self, txn: str, at: int) -> None:
        """Record that a client knows of a commit."""
        if txn not in self._named:
            self._named.add(txn)
            tablets = tuple(self.world.clients[txn].tablets)
            self.acks.append(Acknowledged(self.world.time.now, at, tablets, txn))

    def written(self, number: int, tablet: str, at: int) -> None:
        """Record that a writer knows of its write."""
        self.acks.append(Acknowledged(self.world.time.now, at, (tablet,), f"write {number}"))

    def denied(self, txn: str) -> None:
        """Record that a client was answered that its transaction is not committed."""
        self.denials.add(txn)

    def marked(self, settled: int) -> None:
        """Record a mark that was sent."""
        if not self.marks or self.marks[-1][1] != settled:
            self.marks.append((self.world.time.now, settled))

    def removed(self, txns: tuple[str, ...]) -> None:
        """Record that rows were removed."""
        for txn in txns:
            self.removals.setdefault(txn, self.world.time.now)
