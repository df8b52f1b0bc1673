"""The leader of the catalog as the coordinator of transactions; rules C, A, K, I, F, N and D."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.model.search import Broken
from tests.model.transactions.catalog_state import CatalogState, JobKey, Key, Row, StreamKey, Taken
from tests.model.transactions.groups import TICK, Entry, Message, Read, Replica
from tests.model.transactions.tablet_state import Attempt, Parts

PREPARE_TICKS = 120
"""Steps after which a try ends."""
AHEAD = 1000
"""Hybrid time that a commit time may be above the prepares."""


class Request(NamedTuple):
    """A commit that a client asks for.

    Attributes:
        txn: id.
        key: that takes effect once.
        parts: of each tablet.
        since: stamp of an entry of the transaction, below any commit time.
    """

    txn: str
    key: Key
    parts: tuple[tuple[str, Parts], ...]
    since: int


@dataclass(slots=True)
class Try:
    """An attempt that is under way."""

    request: Request
    attempt: Attempt
    since: int
    votes: dict[str, int] = field(default_factory=dict)
    row: bool = False


@dataclass(slots=True)
class Memory:
    """Of a coordinator.

    Attributes:
        tries: numbers used so far.
        trying: attempts by transaction.
        resolved: tablets that have the resolve, by transaction.
    """

    tries: int = 0
    trying: dict[str, Try] = field(default_factory=dict)
    resolved: dict[str, set[str]] = field(default_factory=dict)


class Coordinator:
    """The service of the catalog.

    Args:
        world: sends messages, and records what is answered.
    """

    def __init__(self, world: Any) -> None:
        self.world = world
        self.weak: frozenset[str] = world.weak

    def new_state(self) -> CatalogState:
        """Return the state before the first entry."""
        return CatalogState()

    def new_memory(self) -> Memory:
        """Return the memory of a new leader."""
        return Memory()

    def handle(self, m: Replica, message: Message) -> None:
        """Process a message at a leader."""
        early = "early-catalog" in self.weak and message.kind in ("commit", "status")
        if early or m.serving():
            getattr(self, f"_on_{message.kind}")(m, *message.content)

    # ---- messages of clients -----------------------------------------------------------------------

    def _on_commit(self, m: Replica, request: Request) -> None:
        state, txn = m.state, request.txn
        if txn in state.rows:
            self.finish(m, txn)
        elif self._being_aborted(m, txn) or self._taken(m, request):
            pass
        elif txn in state.aborted:
            self._deny(m, request)
        elif txn in m.led.memory.trying:
            self.ask(m, m.led.memory.trying[txn])
        elif any(tablet in state.dropped for tablet, _ in request.parts):
            self._deny(m, request)
        elif self._forgotten(m, request):
            self.world.send(Message(txn, "unknown", ()))
        elif not self._locked(m, request.key):
            attempt = self._new_attempt(m)
            attempted = Try(request, attempt, self.world.time.now)
            m.led.memory.trying[txn] = attempted
            self.ask(m, attempted)

    def _on_abort(self, m: Replica, request: Request) -> None:
        """End a transaction that has no decision; it is denied once a tablet has dropped its stage."""
        attempted = m.led.memory.trying.get(request.txn)
        if request.txn in m.state.rows or self._taken(m, request) or (attempted and attempted.row):
            self._on_commit(m, request)
        elif any(tablet in m.state.dropped for tablet, _ in request.parts):
            self.give_up(m, request.txn)
            self._deny(m, request)
        elif self._forgotten(m, request):
            self.world.send(Message(request.txn, "unknown", ()))
        else:
            self.give_up(m, request.txn)
            for tablet, _ in request.parts:
                self.world.send(Message(tablet, "drop", (request.txn, request)))

    def _on_abort_for_good(
        self, m: Replica, txn: str, tablets: tuple[str, ...], since: int
    ) -> None:
        """End a transaction for an operator, who knows some tablets with a stage, and no parts: by a row."""
        attempted = m.led.memory.trying.get(txn)
        if txn in m.state.rows or (attempted and attempted.row) or since <= m.state.removed:
            return
        if "abort-of-tablets" in self.weak:
            request = Request(txn, None, tuple((t, ()) for t in tablets), since)
            self.give_up(m, txn)
            for tablet in tablets:
                self.world.send(Message(tablet, "drop", (txn, request)))
            return
        if "abort-beside" not in self.weak:
            self.give_up(m, txn)
        if txn not in m.state.aborted and not any(e.op == ("abort", txn) for e in m.pending()):
            m.propose(("abort", txn), Message("operator", "aborted", (txn,)))

    def _being_aborted(self, m: Replica, txn: str) -> bool:
        """Return whether the row of an abort is in the log: then no attempt begins."""
        if "abort-beside" in self.weak:
            return False
        return any(e.op == ("abort", txn) for e in m.pending())

    def _on_dropped(self, m: Replica, request: Request, gone: bool) -> None:
        if gone and request.txn not in m.led.memory.trying:
            self._deny(m, request)

    def _on_absent(self, m: Replica, txn: str, tablet: str, gone: bool) -> None:
        """A: a tablet has no stage of a transaction that is committed, by a drop that its group committed."""
        if gone and txn in m.state.rows and tablet not in m.state.dropped:
            raise Broken(f"{txn} is committed, and {tablet} has lost its prepare")

    def _on_drop_tablet(self, m: Replica, tablet: str) -> None:
        if tablet not in m.state.dropped:
            m.propose(("drop_tablet", tablet))

    # ---- keys: rule I ------------------------------------------------------------------------------

    def _taken(self, m: Replica, request: Request) -> bool:
        """Answer a request whose key is taken; return whether it is."""
        key, taken = request.key, m.state.keys.get(request.key.name if request.key else "")
        match key:
            case None:
                return False
            case JobKey():
                if taken is not None:
                    self._done(m, request, taken)
                return taken is not None
            case StreamKey(_, query, epoch, replaces):
                if taken is None or taken.query != query:
                    current = None if taken is None else taken.query
                    blind = "restart-blind" in self.weak and replaces is not None
                    if epoch == 0 and (current == replaces or blind):
                        return False
                    self._refuse(m, request)
                    return True
                if epoch > taken.epoch + 1:
                    self._refuse(m, request)
                    return True
                if epoch == taken.epoch + 1 or "stream-any-epoch" in self.weak:
                    return False
                self._done(m, request, taken)
                return True

    def _refuse(self, m: Replica, request: Request) -> None:
        """N: refuse a key that may be free later: the stages are dropped first."""
        gone = any(tablet in m.state.dropped for tablet, _ in request.parts)
        if gone or {"key-denied", "deny-unconfirmed"} & self.weak:
            self._deny(m, request)
            return
        for tablet, _ in request.parts:
            self.world.send(Message(tablet, "drop", (request.txn, request)))

    def _done(self, m: Replica, request: Request, taken: Taken) -> None:
        """K: a key that is taken counts as acknowledged once no row of the key is left to be resolved."""
        name = request.key.name if request.key else ""
        left = [t for t, row in m.state.rows.items() if row.key and row.key.name == name]
        open_ = [t for t in left if self._unresolved(m, t)]
        for txn in open_:
            self.finish(m, txn)
        if not open_ or "done-unresolved" in self.weak:
            self.world.send(Message(request.txn, "done", (taken.txn, taken.at)))

    def _locked(self, m: Replica, key: Key) -> bool:
        if key is None or "no-key-lock" in self.weak:
            return False
        keys = [t.request.key for t in m.led.memory.trying.values()]
        return any(k is not None and k.name == key.name for k in keys)

    # ---- attempts: rules A and C -------------------------------------------------------------------

    def _new_attempt(self, m: Replica) -> Attempt:
        if "reuse-attempt" not in self.weak:
            m.led.memory.tries += 1
        return m.term, m.led.memory.tries

    def ask(self, m: Replica, attempted: Try) -> None:
        request = attempted.request
        settled = m.server.peek() if "mark-ahead" in self.weak else m.state.settled
        for tablet, parts in request.parts:
            if tablet not in attempted.votes:
                self.world.history.marked(settled)
                content = (request.txn, attempted.attempt, parts, settled)
                self.world.send(Message(tablet, "prepare", content))

    def _on_vote(
        self, m: Replica, txn: str, attempt: Attempt, tablet: str, vote: tuple[str, int]
    ) -> None:
        attempted = m.led.memory.trying.get(txn)
        if attempted is None or attempted.attempt != attempt or attempted.row:
            return
        kind, at = vote
        if kind != "prepared":
            self.give_up(m, txn)
            if kind == "refused":
                self._deny(m, attempted.request)
            return
        attempted.votes[tablet] = at
        wanted = len(attempted.request.parts)
        if "few-prepares" in self.weak and wanted > 1:
            wanted -= 1
        if len(attempted.votes) >= wanted:
            self._decide(m, attempted)

    def _decide(self, m: Replica, attempted: Try) -> None:
        """C: propose the row, with a commit time above all prepares."""
        request = attempted.request
        tablets = tuple(tablet for tablet, _ in request.parts)
        coming = {e.op[1] for e in m.pending() if e.op[0] == "drop_tablet"}
        gone = [t for t in tablets if t in m.state.dropped or t in coming]
        prepared = max(attempted.votes.values())
        if "low-commit" not in self.weak:
            m.server.merge(prepared)
        at = m.server.now()
        if (gone and "drop-unchecked" not in self.weak) or at > prepared + AHEAD:
            self.give_up(m, request.txn)
            return
        attempted.row = True
        m.propose(("commit", request.txn, Row(at, tablets, request.key, attempted.attempt)))
        if "early-resolve" in self.weak:
            self._send_resolves(request.txn, at, tablets)

    def give_up(self, m: Replica, txn: str) -> None:
        """A: end an attempt that has no row; it takes a new number."""
        attempted = m.led.memory.trying.get(txn)
        if attempted is None or attempted.row:
            return
        del m.led.memory.trying[txn]
        bound = self._new_attempt(m)
        for tablet, _ in attempted.request.parts:
            self.world.send(Message(tablet, "unprepare", (txn, bound)))

    def _on_status(self, m: Replica, txn: str, tablet: str) -> None:
        """A, D: a tablet asks what became of a transaction that it is prepared for."""
        if txn in m.state.rows:
            self._send_resolves(txn, m.state.rows[txn].at, (tablet,))
        elif tablet in m.state.dropped and "unprepare-dropped" not in self.weak:
            self._order_deletion(tablet)
        elif txn not in m.led.memory.trying:
            bound = self._new_attempt(m)
            self.world.send(Message(tablet, "unprepare", (txn, bound)))

    # ---- denials: rules F and N --------------------------------------------------------------------

    def _forgotten(self, m: Replica, request: Request) -> bool:
        """F: return whether a row of the transaction may have been removed, and no key says so."""
        if request.since > m.state.removed or "deny-forgotten" in self.weak:
            return False
        if isinstance(request.key, StreamKey):
            taken = m.state.keys.get(request.key.name)
            return taken is None or taken.query != request.key.query
        return request.key is None

    def _deny(self, m: Replica, request: Request) -> None:
        """N: have the client know that there is no commit, after a round."""
        read = Read("denial", m.server.now(), len(m.log), content=request)
        if "deny-unconfirmed" in self.weak:
            self._denied(m, read)
        else:
            m.led.reads.append(read)

    def settle(self, m: Replica) -> None:
        """Deny commits whose round is confirmed."""
        if m.leading is None:
            return
        due = [r for r in m.led.reads if r.confirmed and m.applied >= r.upto]
        m.led.reads = [r for r in m.led.reads if r not in due]
        for read in due:
            self._denied(m, read)

    def _denied(self, m: Replica, read: Read) -> None:
        request = read.content
        state, txn = m.state, request.txn
        if txn in state.rows or txn in m.led.memory.trying or self._has_key(m, request):
            return
        kind = "unknown" if self._forgotten(m, request) else "denied"
        self.world.send(Message(txn, kind, ()))

    def _has_key(self, m: Replica, request: Request) -> bool:
        """Return whether the key is taken by this transaction, or by a later epoch of its query."""
        state: CatalogState = m.state
        taken = state.keys.get(request.key.name if request.key else "")
        if taken is None:
            return False
        if isinstance(request.key, StreamKey):
            return taken.query == request.key.query and taken.epoch >= request.key.epoch
        return True

    # ---- after the decision: rules K and F ---------------------------------------------------------

    def applied(self, m: Replica, entry: Entry) -> None:
        """Note that a member has applied an entry."""
        kind, *args = entry.op
        if kind == "forget":
            self.world.history.removed(args[0])
        if m.leading is None:
            return
        if kind == "commit":
            m.led.memory.trying.pop(args[0], None)
            if m.serving():
                self.finish(m, args[0])
        elif kind == "drop_tablet":
            self._order_deletion(args[0])

    def _unresolved(self, m: Replica, txn: str) -> list[str]:
        """Return the participants of a decision that are not known to have the resolve."""
        have = m.led.memory.resolved.get(txn, set())
        gone = {} if "drop-unresolved" in self.weak else m.state.dropped
        return [t for t in m.state.rows[txn].tablets if t not in have and t not in gone]

    def finish(self, m: Replica, txn: str) -> None:
        """Send resolves until every participant has one; then acknowledge."""
        row = m.state.rows[txn]
        left = self._unresolved(m, txn)
        if not left or "early-ack" in self.weak:
            self.world.send(Message(txn, "done", (txn, row.at)))
        self._send_resolves(txn, row.at, tuple(left))

    def _send_resolves(self, txn: str, at: int, tablets: tuple[str, ...]) -> None:
        for tablet in tablets:
            self.world.send(Message(tablet, "resolve", (txn, at)))

    def _on_resolved(self, m: Replica, txn: str, tablet: str) -> None:
        if txn in m.state.rows:
            m.led.memory.resolved.setdefault(txn, set()).add(tablet)
            if not self._unresolved(m, txn):
                self.finish(m, txn)

    def _order_deletion(self, tablet: str) -> None:
        for n, replica in enumerate(self.world.groups[tablet].replicas):
            if not replica.gone:
                self.world.send(Message(f"{tablet}/{n}", "delete", ()))

    # ---- time --------------------------------------------------------------------------------------

    def upkeep(self, m: Replica) -> None:
        """End tries that take too long, send again, remove rows of old decisions."""
        if not m.serving():
            return
        chance, state = self.world.chance, m.state
        for txn, attempted in list(m.led.memory.trying.items()):
            gone = [t for t, _ in attempted.request.parts if t in state.dropped]
            late = self.world.time.now - attempted.since > PREPARE_TICKS
            if not attempted.row and (gone or late):
                self.give_up(m, txn)
            elif not attempted.row and chance.random() < 0.3:
                self.ask(m, attempted)
        old: list[str] = []
        for txn, row in state.rows.items():
            left = len(self._unresolved(m, txn))
            if left and chance.random() < 0.3:
                self.finish(m, txn)
            if left <= ("early-forget" in self.weak) and (
                m.server.peek() > row.at + self.world.row_ticks * TICK
            ):
                old.append(txn)
        proposed = any(e.op[0] == "forget" for e in m.pending())
        if old and not proposed and chance.random() < 0.5:
            m.propose(("forget", tuple(old)))
        for tablet in state.dropped:
            if chance.random() < 0.3:
                self._order_deletion(tablet)
