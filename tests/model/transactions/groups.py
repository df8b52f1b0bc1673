"""Replicated groups by what Raft guarantees: logs, terms, majorities, lost tails, leases, closed times.

Three members a group. A leader change takes two of them, and what only the third has is lost. A leader that
was replaced does not know it until a message reaches it. Every clock is a hybrid clock over a wall clock.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.model.search import Broken

LEASE_TICKS = 12
TICK = 8
"""Hybrid time of one step of a world."""


class Message(NamedTuple):
    """A message in flight; to the leader of a group, to one member of it, or to a client."""

    to: str
    kind: str
    content: tuple[Any, ...]


class Entry(NamedTuple):
    """An entry of a log."""

    term: int
    stamp: int
    op: tuple[Any, ...]


@dataclass(slots=True)
class Time:
    """The steps of a world so far."""

    now: int = 0


@dataclass(slots=True)
class Server:
    """A process with a hybrid clock, whose last time is durable."""

    time: Time
    skew: int = 0
    last: int = 0
    up: bool = True

    def now(self) -> int:
        """Return a time above all before."""
        self.last = max(self.time.now * TICK + self.skew, self.last + 1)
        return self.last

    def merge(self, at: int) -> None:
        """Advance the clock to a time of another server."""
        self.last = max(self.last, at)

    def peek(self) -> int:
        """Return a time at or above all given out before."""
        return max(self.time.now * TICK + self.skew + TICK - 1, self.last)


@dataclass(slots=True)
class Read:
    """A read that waits at a leader."""

    kind: str
    at: int
    upto: int
    begun: int = 0
    fresh: bool = False
    content: Any = None
    confirmed: bool = False


@dataclass(slots=True)
class Leading:
    """State of one leadership, which ends with it.

    Attributes:
        noop: number of entries with the NOOP of the term.
        lease_until: step before which no other member can be elected.
        match: entries that a follower is known to have.
        waits: the message that a proposal's result belongs into.
        reads: reads that wait.
        memory: of the service.
    """

    noop: int = 0
    lease_until: int = 0
    match: dict[int, int] = field(default_factory=dict)
    waits: dict[int, Message] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    memory: Any = None


class Replica:
    """A member of a group.

    Attributes:
        gone: it was deleted.
        alone_until: step before which it exchanges nothing with other members.
    """

    def __init__(self, group: "Group", server: Server) -> None:
        self.group, self.server = group, server
        self.log: list[Entry] = []
        self.term = 0
        self.gone = False
        self.alone_until = 0
        self.restart(0)

    def restart(self, flushed: int) -> None:
        """Keep log, term and the state that files have; as after a crash, or at another server.

        Args:
            flushed: number of entries whose effects the files contain.
        """
        self.state = self.group.service.new_state()
        self.applied = self.applied_stamp = 0
        self.commit = flushed
        self.closed = 0
        self.coming: tuple[int, int] | None = None
        self.leading: Leading | None = None
        while self.applied < flushed:
            self.apply_one()
        self.state.restored()

    @property
    def up(self) -> bool:
        """True if it runs."""
        return self.server.up and not self.gone

    def reaches(self, other: "Replica") -> bool:
        """Return whether messages of the group pass between this member and another one."""
        now = self.server.time.now
        alone = now < self.alone_until or now < other.alone_until
        return self.up and other.up and self is not other and not alone

    def apply_one(self) -> tuple[Entry, Any]:
        """Apply the next entry; return it and its result."""
        entry = self.log[self.applied]
        result = self.state.apply(entry)
        self.applied += 1
        self.applied_stamp = entry.stamp
        return entry, result

    def propose(self, op: tuple[Any, ...], answer: Message | None = None, above: int = 0) -> None:
        """Append an entry as leader, stamped above a time; its result is added to the answer."""
        assert self.leading is not None
        self.server.merge(above)
        stamp = self.server.now()
        if stamp <= self.closed:
            raise Broken(f"{self.group.name}: an entry at {stamp}, in the closed time")
        self.log.append(Entry(self.term, stamp, op))
        if answer is not None:
            self.leading.waits[len(self.log)] = answer

    @property
    def led(self) -> Leading:
        """Its leadership."""
        assert self.leading is not None, "it does not lead"
        return self.leading

    def serving(self) -> bool:
        """Return whether it leads, as far as it knows, and has applied its own NOOP."""
        return self.leading is not None and self.up and self.applied >= self.leading.noop

    def pending(self) -> list[Entry]:
        """Return the entries of its log that it has not applied."""
        return self.log[self.applied :]


class Group:
    """The members of a tablet or of the catalog.

    Args:
        name: of the group.
        service: makes states, and handles messages and results at leaders.
        servers: three.

    Attributes:
        committed: all entries that were ever committed, for the judge.
    """

    def __init__(self, name: str, service: Any, servers: list[Server]) -> None:
        self.name, self.service = name, service
        self.replicas = [Replica(self, s) for s in servers]
        self.committed: list[Entry] = []

    def leaders(self) -> list[Replica]:
        """Return the members that lead as far as they know."""
        return [r for r in self.replicas if r.leading is not None and r.up]

    def best(self) -> Replica:
        """Return the member that has applied most."""
        return max(self.replicas, key=lambda r: r.applied)

    def elect(self, candidate: Replica, voter: Replica) -> bool:
        """Make a member the leader with the vote of another; the third learns of it later."""
        if candidate.leading is not None or not candidate.reaches(voter):
            return False
        now = candidate.server.time.now
        if any(r.leading is not None and now < r.leading.lease_until for r in self.replicas):
            return False
        last = [(r.log[-1].term if r.log else 0, len(r.log)) for r in (candidate, voter)]
        if last[0] < last[1]:
            return False
        term = max(candidate.term, voter.term) + 1
        for r in (candidate, voter):
            r.term, r.leading = term, None
        candidate.server.merge(voter.server.peek())
        voter.server.merge(candidate.server.peek())
        candidate.leading = Leading(memory=self.service.new_memory())
        candidate.propose(("noop",))
        candidate.leading.noop = len(candidate.log)
        return True

    def append(self, leader: Replica, follower: Replica, limit: int) -> None:
        """Send a follower entries that it lacks, at most a number of them, and process its answer."""
        if leader.leading is None or not leader.reaches(follower):
            return
        if follower.term > leader.term:
            leader.term, leader.leading = follower.term, None
            return
        follower.leading, follower.term = None, leader.term
        follower.server.merge(leader.server.peek())
        leader.server.merge(follower.server.peek())
        mine, its = leader.log, follower.log
        same = follower.commit
        while same < min(len(its), len(mine)) and its[same].term == mine[same].term:
            same += 1
        known = min(len(mine), same + limit)
        if (same < len(its) and known > same) or len(its) < known:
            assert same >= follower.applied, "an applied entry would be removed"
            follower.log = its[:same] + mine[same:known]
        leader.leading.match[self.replicas.index(follower)] = known
        for n in range(known, leader.commit, -1):
            if mine[n - 1].term == leader.term:
                leader.commit = n
                self.committed += mine[len(self.committed) : n]
                break
        follower.commit = max(follower.commit, min(leader.commit, known))
        if leader.closed > follower.closed and follower.coming is None:
            follower.coming = (leader.closed, leader.commit)
        _ripen(follower)

    def confirm(self, leader: Replica, follower: Replica) -> None:
        """Carry out a read round; the leader and one follower are its majority."""
        leading = leader.leading
        if leading is None or not leader.reaches(follower) or leader.commit < leading.noop:
            return
        if follower.term > leader.term:
            leader.term, leader.leading = follower.term, None
        elif follower.term == leader.term:
            for read in leading.reads:
                follower.server.merge(read.at)
                read.confirmed = True
            follower.server.merge(leader.server.peek())
            until = leader.server.time.now + LEASE_TICKS
            leading.lease_until = max(leading.lease_until, until)
            self.service.settle(leader)

    def apply(self, replica: Replica, limit: int) -> list[tuple[Message, Any]]:
        """Apply committed entries, at most a number of them; return the answers that are due."""
        answers = []
        for _ in range(limit):
            if replica.applied >= replica.commit or not replica.up:
                break
            entry, result = replica.apply_one()
            self.service.applied(replica, entry)
            leading = replica.leading
            if leading is not None and entry.term == replica.term:
                answer = leading.waits.pop(replica.applied, None)
                if answer is not None:
                    answers.append((answer, result))
        _ripen(replica)
        if replica.leading is not None:
            self.service.settle(replica)
        return answers

    def move(self, replica: Replica, server: Server, flushed: int) -> None:
        """Have a member at another server, with log, term and flushed state; its clock comes along."""
        server.merge(replica.server.peek())
        replica.server = server
        replica.restart(flushed)


def _ripen(replica: Replica) -> None:
    """Let a closed time count once all entries before it are applied."""
    if replica.coming is not None and replica.applied >= replica.coming[1]:
        replica.closed = max(replica.closed, replica.coming[0])
        replica.coming = None
