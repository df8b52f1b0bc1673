"""A random world of transactions: servers, tablets, the catalog, a network, faults, clients, readers.

One seed determines a world. It runs under faults for a number of steps; then the faults end, everything in
flight has to come to an end, and the judge looks at all that was answered.
"""

import heapq
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

from tests.model.search import Broken
from tests.model.transactions.catalog_state import Key
from tests.model.transactions.clients import Client, Stream, Tags, draw_key
from tests.model.transactions.coordinator import Coordinator
from tests.model.transactions.groups import Group, Message, Replica, Server, Time
from tests.model.transactions.history import History
from tests.model.transactions.judge import Judge
from tests.model.transactions.tablets import Tablets

STEPS = 900
HEALED_STEPS = 3000
UNTUNED: Mapping[str, float] = {}


class World:
    """One world.

    Args:
        seed: determines everything.
        weak: rules that are left out, from `weak.WEAK`.
        tuned: attributes with values of their own, for worlds in which something is likelier.

    Attributes:
        faults: probability of a fault in a step.
        quiet: share of steps without load.
        slow: share of late messages.
        double: share of messages that are doubled.
        alone: steps for which a leader may be without contact to its group.
        ahead: hybrid time by which masters are ahead, besides.
        definitions: share of changes of definition among writes.
        drops: share of drops among these.
        deletions: probability that an order of deletion is carried out.
        shared: share of keys that are shared.
        streaming: share of transactions of streams, if there are any.
        restarts: probability that a driver of a stream does not wait for its transaction.
        early: probability that such a driver, in another process, asks for the epoch after the present one.
        operators: probability that a step of load is an abort by an operator.
        stage_timeout: hybrid time after which a stage expires.
        row_ticks: steps for which a row is kept.
    """

    def __init__(
        self, seed: int, weak: Iterable[str] = (), tuned: Mapping[str, float] = UNTUNED
    ) -> None:
        self.chance = chance = Random(seed)
        self.weak, self.healed = frozenset(weak), False
        self.time = Time()
        room = chance.choice((3, 4, 6))
        skews = [chance.choice((0, 0, 5, 40, -40, 400, -400)) for _ in range(room)]
        skews += [chance.choice((0, 0, 0, 40, -400, 700)) for _ in range(3)]
        self.servers = [Server(self.time, s) for s in skews]
        self.tablets = [f"t{n}" for n in range(chance.choice((2, 3, 3)))]
        self.history = History(self)
        service = Tablets(self)
        self.groups = {
            name: Group(name, service, chance.sample(self.servers[:room], 3))
            for name in self.tablets
        }
        self.groups["catalog"] = Group("catalog", Coordinator(self), self.servers[room:])
        self.clients: dict[str, Client] = {}
        self.tags = Tags(chance)
        self.streams = [Stream(self, f"s{n}") for n in range(chance.choice((0, 1, 1, 2)))]
        self.queries = self.writes = 0
        self._flying: list[tuple[int, int, Message]] = []
        self._arrived: list[Message] = []
        self._sent = 0
        self.faults = chance.choice((0.002, 0.01, 0.03))
        self.quiet = chance.choice((0.0, 0.3, 0.6))
        self.slow = chance.choice((0.0, 0.05, 0.08))
        self.stage_timeout = chance.choice((1500, 4000, 12_000))
        self.row_ticks = chance.choice((30, 60, 200))
        self.double = chance.choice((0.02, 0.05, 0.15))
        self.deletions = chance.choice((0.01, 0.1, 1.0))
        self.definitions = chance.choice((0.0, 0.03, 0.15))
        self.alone, self.ahead, self.drops, self.shared = 300, 0, 0.08, 0.35
        self.streaming, self.restarts, self.early, self.operators = 0.5, 0.12, 0.0, 0.0
        for name, value in tuned.items():
            assert hasattr(self, name), name
            setattr(self, name, value)
        for server in self.servers[-3:]:
            server.skew += self.ahead
        for group in self.groups.values():
            while not group.leaders():
                group.elect(*chance.sample(group.replicas, 2))

    # ---- messages ----------------------------------------------------------------------------------

    def send(self, message: Message, *result: Any) -> None:
        """Send a message, which may be lost, doubled or late; `result` is added to its content."""
        message = message._replace(content=(*message.content, *result))
        chance = self.chance
        if self.healed:
            self._fly(0, message)
            return
        if chance.random() < 0.08:
            return
        self._fly(chance.randrange(400) if chance.random() < self.slow else 0, message)
        if chance.random() < self.double:
            self._fly(chance.randrange(500), message)

    def _fly(self, delay: int, message: Message) -> None:
        self._sent += 1
        heapq.heappush(self._flying, (self.time.now + delay, self._sent, message))

    def _deliver_some(self) -> None:
        while self._flying and self._flying[0][0] <= self.time.now:
            self._arrived.append(heapq.heappop(self._flying)[2])
        for _ in range(min(3, len(self._arrived))):
            place = self.chance.randrange(min(12, len(self._arrived)))
            self.deliver(self._arrived.pop(place))

    def deliver(self, message: Message) -> None:
        """Have a message arrive, at a member that leads as far as it knows if it is to a group."""
        group = self.groups.get(message.to)
        if group is not None:
            leaders = group.leaders()
            if leaders:
                group.service.handle(self.chance.choice(leaders), message)
        elif message.to == "operator":
            txn, aborted = message.content
            decided = [e.op[1] for e in self.groups["catalog"].committed if e.op[0] == "commit"]
            if aborted and txn not in decided:  # one whose row was removed may have a late stage
                self.history.denied(txn)
        elif message.to == "writer":
            self.history.written(*message.content)
        elif message.kind == "delete":
            name, _, number = message.to.partition("/")
            replica = self.groups[name].replicas[int(number)]
            if replica.up and (self.healed or self.chance.random() < self.deletions):
                replica.gone, replica.leading = True, None
        else:
            self.clients[message.to].receive(message)

    # ---- load --------------------------------------------------------------------------------------

    def begin(self, key: Key) -> Client:
        """Return the client of a new transaction."""
        chance = self.chance
        count = chance.randrange(1, len(self.tablets) + 1)
        txn = f"x{len(self.clients)}"
        content = self.tags.content(chance.sample(self.tablets, count))
        if self.operators:
            self.tags.add_elsewhere(content, self.tablets)
        self.clients[txn] = client = Client(self, txn, key, content)
        return client

    def living(self) -> list[Client]:
        """Return the clients that wait for an outcome."""
        return [c for c in self.clients.values() if not c.outcome]

    def _load(self) -> None:
        if self.operators and self.chance.random() < self.operators:
            self._operate()
            return
        roll, living = self.chance.random(), self.living()
        if living and roll < 0.5:
            self.chance.choice(living).drive()
        elif roll < 0.57 and len(living) < 5:
            if self.streams and self.chance.random() < self.streaming:
                self.chance.choice(self.streams).drive()
            else:
                names = list(self.clients)
                self.begin(draw_key(self.chance, f"x{len(names)}", names[-4:], self.shared))
        elif roll < 0.7:
            self._write()
        elif roll < 0.8:
            self._snapshot()
        elif roll < 0.93:
            self._lookup()
        else:
            self._stale()

    def _operate(self) -> None:
        """Have an operator end a transaction, by what one tablet has staged of it."""
        name = self.chance.choice(self.tablets)
        for lead in self.groups[name].leaders():
            if lead.state.stages:
                txn = self.chance.choice(list(lead.state.stages))
                content = (txn, (name,), lead.state.stages[txn].kept)
                self.send(Message("catalog", "abort_for_good", content))

    def _write(self) -> None:
        chance = self.chance
        name = chance.choice(self.tablets)
        if chance.random() < self.definitions:
            if chance.random() < self.drops:
                self.send(Message("catalog", "drop_tablet", (name,)))
            else:
                self.send(Message(name, "alter", (chance.random() < 0.5,)))
            return
        known = [a.at for a in self.history.acks[-3:]]
        seen = max(known, default=0) if chance.random() < 0.3 else 0
        self.writes += 1
        self.send(Message(name, "write", (self.writes, (self.tags.draw(),), seen)))

    def fresh(self, names: list[str]) -> int | None:
        """Return the largest clock among a majority of each tablet's servers; None: some is down."""
        latest = 0
        for name in names:
            two = self.chance.sample(self.groups[name].replicas, 2)
            if not all(r.server.up for r in two):
                return None
            latest = max(latest, *(r.server.peek() for r in two))
        return latest

    def _snapshot(self) -> None:
        chance = self.chance
        names = chance.sample(self.tablets, chance.randrange(1, len(self.tablets) + 1))
        at, fresh = self.fresh(names), True
        if at is None or chance.random() < 0.4:
            old = [read.at for read in self.history.reads[-30:]]
            at = chance.choice(old) + chance.randrange(-40, 80) if old else None
            fresh = False
        if at is not None and at > 0:
            for name in names:
                self.send(Message(name, "read", (at, self.time.now, fresh)))

    def _lookup(self) -> None:
        """Look up at a tablet, often at one with a prepared transaction."""
        held = [n for n in self.tablets if any(r.state.prepared for r in self.groups[n].leaders())]
        names = held if held and self.chance.random() < 0.7 else self.tablets
        self.send(Message(self.chance.choice(names), "lookup", (self.time.now,)))

    def _stale(self) -> None:
        replica = self.chance.choice(self.groups[self.chance.choice(self.tablets)].replicas)
        if replica.up and replica.closed:
            self.history.saw("stale", replica, replica.closed, self.time.now, False)

    # ---- faults ------------------------------------------------------------------------------------

    def _fault(self) -> None:
        chance, roll = self.chance, self.chance.random()
        if roll < 0.45:
            group = chance.choice([*self.groups.values(), self.groups["catalog"]])
            if roll < 0.2:  # the former leader does not learn of it for some time
                for lead in group.leaders():
                    lead.alone_until = self.time.now + chance.randrange(self.alone)
            group.elect(*chance.sample(group.replicas, 2))
        elif roll < 0.55:
            chance.choice(self.servers).skew += chance.choice((-60, 60, 300))
        elif roll < 0.65:
            self._move()
        else:
            self._crash_or_start(chance.choice(self.servers))
        for group in self.groups.values():
            if sum(r.server.up for r in group.replicas) < 2 and chance.random() < 0.7:
                for r in group.replicas:
                    r.server.up = True

    def _move(self) -> None:
        """Have a follower at a server that has no member of its group."""
        group = self.groups[self.chance.choice(self.tablets)]
        replica = self.chance.choice(group.replicas)
        free = [
            s for s in self.servers[:-3] if s.up and all(r.server is not s for r in group.replicas)
        ]
        if free and replica.up and replica.leading is None:
            group.move(replica, self.chance.choice(free), self._flushed(replica))

    def _crash_or_start(self, server: Server) -> None:
        server.up = not server.up
        for group in self.groups.values() if not server.up else ():
            for r in group.replicas:
                if r.server is server:
                    r.restart(self._flushed(r))

    def _flushed(self, replica: Replica) -> int:
        """Return the number of entries that the files of a member contain."""
        return self.chance.randrange(replica.applied + 1)

    # ---- time --------------------------------------------------------------------------------------

    def step(self) -> None:
        """Let one step of time pass."""
        self.time.now += 4 if self.healed else 1
        chance = self.chance
        if not self.healed and chance.random() < self.faults:
            self._fault()
        for _ in range(2):
            self._of_group(chance.choice(list(self.groups.values())))
        self._deliver_some()
        if not self.healed and chance.random() > self.quiet:
            self._load()
        elif chance.random() < 0.3:
            living = self.living()
            if living:
                chance.choice(living).drive()

    def _of_group(self, group: Group) -> None:
        chance = self.chance
        r, roll = chance.choice(group.replicas), chance.random()
        leaders = group.leaders()
        if roll < 0.45:
            for lead in leaders:
                group.append(lead, r, chance.randrange(10))
        elif roll < 0.8:
            behind = r.commit - r.applied
            limit = behind if self.healed or behind > 25 else chance.randrange(1, 7)
            for answer, result in group.apply(r, limit):
                self.send(answer, result)
        elif roll < 0.9:
            for lead in leaders:
                group.confirm(lead, r)
        else:
            for lead in leaders:
                group.service.upkeep(lead)
        leads = any(lead.alone_until < self.time.now for lead in leaders)
        if not leads and chance.random() < 0.2:
            group.elect(r, chance.choice(group.replicas))

    def run(self) -> None:
        """Run the world to its end, and judge it.

        Raises:
            Broken: a rule is violated.
        """
        for _ in range(STEPS):
            self.step()
        self.healed = True
        for server in self.servers:
            server.up, server.skew = True, 0
        for n in range(HEALED_STEPS):
            self.step()
            if n % 25 == 0 and not self.living() and not self.unsettled():
                break
        else:
            Judge(self).check_answered()
            living = [c.txn for c in self.living()]
            raise Broken(f"it does not come to an end: {self.unsettled()}, clients {living}")
        Judge(self).check()

    def unsettled(self) -> list[str]:
        """Return what keeps the world from its end: groups, stages, rows."""
        found = []
        for name, group in self.groups.items():
            members = [r for r in group.replicas if not r.gone]
            if not members:
                continue
            leaders = [r for r in members if r.leading is not None]
            if not leaders or any(r.applied < len(leaders[0].log) for r in members):
                found.append(f"{name} is not applied")
            elif name == "catalog":
                found += [f"row {txn}" for txn in leaders[0].state.rows]
            else:
                found += [f"prepare of {txn} in {name}" for txn in leaders[0].state.prepared]
                found += [f"stage {txn} of {name}" for txn in leaders[0].state.stages]
        return found
