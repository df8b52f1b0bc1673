"""Clients: transactions with tasks that run twice, drivers of streams, and what they are answered."""

from dataclasses import dataclass
from random import Random
from typing import Any

from tests.model.transactions.catalog_state import JobKey, Key, StreamKey
from tests.model.transactions.coordinator import Request
from tests.model.transactions.groups import Message
from tests.model.transactions.tablet_state import Op, Parts

KEYS = 3
"""Keys of rows in a tablet."""
RETRY_TICKS = 15
"""Steps after which a client sends again."""
Place = tuple[str, str, int]
"""A batch: tablet, part, number."""


@dataclass(frozen=True, slots=True)
class Content:
    """Parts and operations of a transaction.

    Attributes:
        parts: that count, of each tablet.
        meant: operations of the parts that count, of each tablet.
        batches: all that is staged, also by attempts of tasks that do not count.
    """

    parts: tuple[tuple[str, Parts], ...]
    meant: dict[str, tuple[Op, ...]]
    batches: dict[Place, tuple[Op, ...]]


class Tags:
    """Draws operations; every append has a number of its own."""

    def __init__(self, chance: Random) -> None:
        self.chance, self.last = chance, 0

    def draw(self, clear: float = 0.0) -> Op:
        """Return an operation; `clear`: probability that it deletes all rows."""
        roll, key = self.chance.random(), self.chance.randrange(KEYS)
        if roll < clear:
            return ("clear",)
        if roll < 0.2:
            return ("delete", key)
        self.last += 1
        return ("append", key, self.last)

    def content(self, tablets: list[str]) -> Content:
        """Return a transaction over tablets: tasks in order, each with one attempt that counts."""
        chance = self.chance
        parts: list[tuple[str, Parts]] = []
        meant: dict[str, tuple[Op, ...]] = {}
        batches: dict[Place, tuple[Op, ...]] = {}
        for tablet in tablets:
            named: list[tuple[str, int]] = []
            counted: tuple[Op, ...] = ()
            for task in range(chance.randrange(1, 3)):
                attempts = chance.randrange(1, 3)
                good = chance.randrange(attempts)
                for attempt in range(attempts):
                    part, count = f"{task}.{attempt}", chance.randrange(1, 3)
                    for seq in range(count):
                        ops = tuple(self.draw(0.06) for _ in range(chance.randrange(1, 3)))
                        if attempt == good or chance.random() < 0.7:
                            batches[tablet, part, seq] = ops
                        if attempt == good:
                            counted += ops
                    if attempt == good:
                        named.append((part, count))
            parts.append((tablet, tuple(named)))
            meant[tablet] = counted
        return Content(tuple(parts), meant, batches)

    def add_elsewhere(self, content: Content, tablets: list[str]) -> None:
        """Add a batch of a failed task in a tablet that the commit does not name."""
        others = [t for t in tablets if t not in content.meant]
        if others:
            content.batches[self.chance.choice(others), "failed", 0] = (self.draw(),)


class Client:
    """The process that stages and commits one transaction.

    Args:
        world: sends messages, and records what is answered.
        txn: id.
        key: of the transaction, or None.
        content: of the transaction.
    """

    def __init__(self, world: Any, txn: str, key: Key, content: Content) -> None:
        self.world, self.txn, self.key, self.content = world, txn, key, content
        self.staged: set[Place] = set()
        self.since = self.newest = self.asked = 0
        self.quits = world.chance.random() < 0.15
        self.aborts = world.chance.random() < 0.15
        self.outcome = ""
        self.again = self.tries = 0

    @property
    def tablets(self) -> list[str]:
        """Return the participants."""
        return list(self.content.meant)

    def drive(self) -> None:
        """Stage what is not known to be staged; then ask for the commit, or for the end."""
        chance, world = self.world.chance, self.world
        if world.time.now < self.again:
            return
        self.again = world.time.now + RETRY_TICKS
        left = [place for place in self.content.batches if place not in self.staged]
        self.tries += 1
        if left and not self.asked and self.tries < 20 and chance.random() > 0.01:
            for place in left[:4]:
                tablet, part, seq = place
                content = (self.txn, part, seq, self.content.batches[place])
                world.send(Message(tablet, "stage", content))
            return
        if chance.random() < 0.1:
            world.send(Message(chance.choice(self.tablets), "keep", (self.txn,)))
        self.since = self.since or self.newest
        self.asked += 1
        request = Request(self.txn, self.key, self.content.parts, self.since)
        kind = "abort" if self.aborts and self.asked > 4 else "commit"
        world.send(Message("catalog", kind, (request,)))
        if self.quits and self.asked > 2 and not world.healed:
            self.outcome = "gone"

    def receive(self, message: Message) -> None:
        """Process an answer."""
        if self.outcome:
            return
        getattr(self, f"_on_{message.kind}")(*message.content)

    def _on_staged(self, tablet: str, part: str, seq: int, stamp: int | None) -> None:
        if stamp is None and not self.asked:
            self._on_denied()
        elif stamp is not None:
            self.staged.add((tablet, part, seq))
            self.again = 0
            self.newest = max(self.newest, stamp)

    def _on_done(self, winner: str, at: int) -> None:
        self.outcome = "done"
        self.world.history.acknowledged(winner, at)
        if winner != self.txn:
            self._drop()

    def _on_denied(self) -> None:
        self.outcome = "denied"
        self.world.history.denied(self.txn)
        if self.world.chance.random() < 0.5:
            self._drop()

    def _on_unknown(self) -> None:
        self.outcome = "unknown"

    def _drop(self) -> None:
        for tablet in self.tablets:
            self.world.send(Message(tablet, "drop", (self.txn, None)))


class Stream:
    """The epochs of a query, one transaction after the other; processes are replaced, and queries are.

    Args:
        world: makes transactions.
        name: of the stream.
    """

    def __init__(self, world: Any, name: str) -> None:
        self.world, self.name = world, name
        self.query = self.epoch = 0
        self.replaces: int | None = None
        self.client: Client | None = None

    def drive(self) -> None:
        """Begin the next epoch, the same one in another process, or a new query."""
        chance, outcome = self.world.chance, self.client.outcome if self.client else ""
        if outcome == "done":
            self.epoch += 1
        elif outcome == "denied" and chance.random() < 0.3:
            self._new_query()
        elif self.client is not None and not outcome:
            if chance.random() > self.world.restarts:
                return
            if chance.random() < 0.3:
                self._new_query()
        ahead = 0
        if self.world.early and self.epoch and chance.random() < self.world.early:
            ahead = 1
        key = StreamKey(self.name, self.query, self.epoch + ahead, self.replaces)
        self.client = self.world.begin(key)

    def _new_query(self) -> None:
        """Take the stream over from the query that some member of the catalog has."""
        state = self.world.chance.choice(self.world.groups["catalog"].replicas).state
        taken = state.keys.get(self.name)
        self.replaces = None if taken is None else taken.query
        self.world.queries += 1
        self.query, self.epoch = self.world.queries, 0


def draw_key(chance: Random, txn: str, known: list[str], shared: float) -> Key:
    """Return a key of a job, or None.

    Args:
        chance: of the world.
        txn: the transaction.
        known: transactions whose key it may have.
        shared: probability that it has one of these.
    """
    roll = chance.random()
    if roll < 0.3:
        return None
    return JobKey(chance.choice(known) if known and roll < 0.3 + shared else txn)
