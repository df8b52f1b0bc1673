"""Every order of events of one transaction over two tablets, with the code of the random worlds.

A commit, a retry, a snapshot, an ordinary write, a change of leader that the former leader does not learn of,
and an attempt that the coordinator ends. Each message arrives at any later time, at any member that leads as
far as it knows, or never. After every event all that was answered is judged. The search is breadth first.
"""

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.model.search import Searched, search
from tests.model.transactions.clients import Client, Content
from tests.model.transactions.coordinator import Coordinator, Request
from tests.model.transactions.groups import Group, Message, Replica, Server, Time
from tests.model.transactions.history import History
from tests.model.transactions.judge import Judge
from tests.model.transactions.tablets import Tablets

TABLETS = ("t0", "t1")
ALL = 1 << 20


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of an exploration: the number of times that an event may happen.

    Attributes:
        group: that may change its leader; entries of the others are replicated at once.
        elections: changes of leader.
        ends: attempts that the coordinator ends.
        retries: commits that the client asks for again.
        reads: snapshots of both tablets.
        writes: ordinary writes to the first tablet.
    """

    group: str = ""
    elections: int = 0
    ends: int = 0
    retries: int = 0
    reads: int = 1
    writes: int = 0


FULL = {
    "no fault": Bounds(),
    "an attempt ends": Bounds(ends=1, retries=1),
    "the tablet's leader changes": Bounds("t0", 1),
    "the coordinator changes": Bounds("catalog", 1, retries=1),
    "the coordinator changes, a write": Bounds("catalog", 1, retries=1, writes=1),
}


class _Never:
    """A source of chance for parts that are not explored."""

    def random(self) -> float:
        return 1.0


@dataclass(slots=True)
class Small:
    """A state: the groups, the messages in flight, what was answered, and how much may still happen."""

    weak: frozenset[str]
    left: dict[str, int]
    slow: str
    time: Time = field(default_factory=Time)
    chance: Any = field(default_factory=_Never)
    flying: list[Message] = field(default_factory=list)
    groups: dict[str, Group] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)
    history: Any = None
    tablets: tuple[str, ...] = TABLETS
    healed: bool = True
    stage_timeout: int = ALL
    row_ticks: int = ALL

    def send(self, message: Message, *result: Any) -> None:
        """Have a message in flight."""
        message = message._replace(content=(*message.content, *result))
        if message.to in self.clients:
            self.time.now += message.kind == "done"
            self.clients[message.to].receive(message)
        elif message not in self.flying and message.to != "writer":
            self.flying.append(message)


def start(bounds: Bounds, weak: Iterable[str] = ()) -> Small:
    """Return the state in which the transaction is staged, and its commit is in flight."""
    left = {n: getattr(bounds, n) for n in Bounds.__slots__ if n != "group"}
    world = Small(frozenset(weak), left, bounds.group)
    world.history = History(world)
    ops = {"t0": (("append", 0, 1), ("append", 1, 2), ("append", 0, 3)), "t1": (("append", 0, 4),)}
    parts = tuple((name, (("p", 1),)) for name in TABLETS)
    content = Content(parts, dict(ops), {(n, "p", 0): ops[n] for n in TABLETS})
    for name, skew in (("t0", 0), ("t1", 40), ("catalog", 20)):
        servers = [Server(world.time, skew) for _ in range(3)]
        service: Any = Coordinator(world) if name == "catalog" else Tablets(world)
        world.groups[name] = group = Group(name, service, servers)
        group.elect(group.replicas[0], group.replicas[1])
        lead = group.replicas[0]
        for _ in range(3):
            for follower in group.replicas[1:]:
                _replicate(world, lead, follower)
            if name != "catalog" and not lead.state.stages:
                service.handle(lead, Message(name, "stage", ("x", "p", 0, ops[name])))
    world.flying.clear()
    world.clients["x"] = client = Client.__new__(Client)
    client.world, client.txn, client.content, client.outcome = world, "x", content, ""
    world.flying.append(Message("catalog", "commit", (Request("x", None, parts, 1),)))
    return world


def _replicate(world: Small, lead: Replica, follower: Replica) -> None:
    """Have a follower get all entries, both apply all that is committed, and a round succeed."""
    group = lead.group
    for _ in range(2):
        group.append(lead, follower, ALL)
        for member in (lead, follower):
            for answer, result in group.apply(member, ALL):
                world.send(answer, result)
    group.confirm(lead, follower)


def _replicate_all(world: Small) -> None:
    """Replicate what is not in the group whose leader may change."""
    for name, group in world.groups.items():
        for _ in range(3):
            if name != world.slow and _has_work(group.replicas[0]):
                _replicate(world, *group.replicas[:2])


def _has_work(lead: Replica) -> bool:
    replicas = lead.group.replicas
    follower = replicas[replicas.index(lead) + 1]
    waits = lead.leading is not None and any(not r.confirmed for r in lead.led.reads)
    return lead.applied < len(lead.log) or waits or follower.applied < lead.applied


class Events:
    """The events that may follow a state; each is a label and what it does."""

    def __init__(self, world: Small) -> None:
        self.world = world

    def all(self) -> Iterator[tuple[str, Any]]:
        """Yield the events."""
        world = self.world
        for name, group in world.groups.items():
            for lead in group.leaders():
                yield from self._of_leader(name, lead)
            if world.left["elections"] and name == world.slow:
                yield f"{name} has a new leader", lambda g=group: self._elect(g)
        for n, message in enumerate(world.flying):
            for lead in world.groups[message.to].leaders():
                number = lead.group.replicas.index(lead)
                label = f"{message.kind} arrives at {message.to}/{number}"
                yield label, lambda n=n, r=lead: r.group.service.handle(r, world.flying.pop(n))
        if world.left["retries"] and not self._flies("commit") and not world.clients["x"].outcome:
            yield "the client asks again", self._retry
        if world.left["reads"]:
            yield "a snapshot begins", self._read
        if world.left["writes"]:
            yield "a write begins", self._write

    def _flies(self, kind: str, to: str = "") -> bool:
        return any(m.kind == kind and to in ("", m.to) for m in self.world.flying)

    def _of_leader(self, name: str, lead: Replica) -> Iterator[tuple[str, Any]]:
        replicas = lead.group.replicas
        number = replicas.index(lead)
        follower = replicas[number + 1]
        leading: Any = lead.leading
        if name == self.world.slow and _has_work(lead):
            yield f"{name}/{number} replicates", lambda: _replicate(self.world, lead, follower)
        if not lead.serving():
            return
        service: Any = lead.group.service
        if name != "catalog":
            held = [t for t in lead.state.prepared if t not in lead.led.memory.times]
            if held and not lead.state.resolving and not self._flies("status"):
                ask = Message("catalog", "status", ("x", name))
                yield f"{name} asks", lambda: self.world.send(ask)
            if lead.state.resolving and not lead.pending():
                yield f"{name} proposes a slice", lambda: service.resolve_some(lead)
            return
        for txn, attempted in leading.memory.trying.items():
            if attempted.row:
                continue
            if self.world.left["ends"]:
                yield "the attempt ends", lambda t=txn: self._end(service, lead, t)
            if not self._flies("prepare"):
                yield "prepares are sent again", lambda a=attempted: service.ask(lead, a)
        for txn in lead.state.rows:
            if not self._flies("resolve") and not self.world.clients["x"].outcome:
                yield "resolves are sent again", lambda t=txn: service.finish(lead, t)

    # ---- events --------------------------------------------------------------------------------

    def _spend(self, name: str) -> None:
        self.world.left[name] -= 1

    def _elect(self, group: Group) -> None:
        self._spend("elections")
        group.elect(group.replicas[1], group.replicas[2])

    def _end(self, service: Any, lead: Replica, txn: str) -> None:
        self._spend("ends")
        service.give_up(lead, txn)

    def _retry(self) -> None:
        self._spend("retries")
        parts = self.world.clients["x"].content.parts
        self.world.send(Message("catalog", "commit", (Request("x", None, parts, 1),)))

    def _read(self) -> None:
        self._spend("reads")
        world = self.world
        world.time.now += 1
        pairs = [world.groups[name].replicas[:2] for name in TABLETS]
        at = max(r.server.peek() for pair in pairs for r in pair)
        for name in TABLETS:
            world.send(Message(name, "read", (at, world.time.now, True)))

    def _write(self) -> None:
        self._spend("writes")
        self.world.send(Message("t0", "write", (1, (("append", 1, 9),), 0)))


class Node:
    """A state as bytes, and a digest of what determines its future; equal digests are equal states."""

    __slots__ = ("data", "digest")

    def __init__(self, world: Small) -> None:
        self.data = pickle.dumps(world, -1)
        self.digest = hash(tuple(_described(world)))

    def __hash__(self) -> int:
        return self.digest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.digest == other.digest

    def world(self) -> Small:
        """Return a state of its own to change."""
        found: Small = pickle.loads(self.data)
        return found


def _described(world: Small) -> Iterator[Any]:
    for group in world.groups.values():
        for r in group.replicas:
            yield tuple(r.log), r.term, r.commit, r.applied, r.closed, r.coming, r.server.last
            if r.leading is not None:
                memory = (r.leading.match, r.leading.waits, r.led.reads, r.led.memory)
                yield r.led.noop, repr(memory)
    yield tuple(sorted(map(repr, world.flying)))
    yield tuple(sorted(map(repr, world.history.reads))), repr(world.history.acks)
    yield tuple(sorted(world.history.denials)), tuple(world.left.values()), world.time.now


def _steps(node: Node) -> Iterator[tuple[str, Node]]:
    count = len(list(Events(node.world()).all()))
    for n in range(count):
        world = node.world()
        label, act = list(Events(world).all())[n]
        act()
        _replicate_all(world)
        Judge(world).check_answered()
        yield label, Node(world)


def _goals(node: Node) -> Iterator[str]:
    world = node.world()
    if world.clients["x"].outcome:
        yield world.clients["x"].outcome
    if any(read.rows for read in world.history.reads):
        yield "seen"


def explore(bounds: Bounds, at_most: int, weak: Iterable[str] = ()) -> Searched:
    """Explore, and judge every state.

    Raises:
        Broken: a rule is violated.
    """
    return search(Node(start(bounds, weak)), _steps, _goals, at_most)
