"""The leader of a tablet: its messages, reads and time; rules R, L, W and O."""

from dataclasses import dataclass, field
from typing import Any

from tests.model.transactions.groups import Entry, Message, Read, Replica
from tests.model.transactions.tablet_state import (
    SLICE,
    Attempt,
    Batch,
    Op,
    Parts,
    Prepared,
    TabletState,
)

NEVER = 1 << 60


@dataclass(slots=True)
class Decided:
    """Commit times that a leader has been sent."""

    times: dict[str, int] = field(default_factory=dict)


class Tablets:
    """The service of all tablets.

    Args:
        world: sends messages, and records what is answered.
    """

    def __init__(self, world: Any) -> None:
        self.world = world
        self.weak: frozenset[str] = world.weak

    def new_state(self) -> TabletState:
        """Return the state before the first entry."""
        return TabletState(self.weak)

    def new_memory(self) -> Decided:
        """Return the memory of a new leader."""
        return Decided()

    def applied(self, replica: Replica, entry: Entry) -> None:
        """Note that a member has applied an entry."""

    def handle(self, lead: Replica, message: Message) -> None:
        """Process a message at a leader."""
        early = message.kind in ("write", "read", "lookup")
        if early or lead.serving():
            getattr(self, f"_on_{message.kind}")(lead, *message.content)

    # ---- messages of clients -----------------------------------------------------------------------

    def _on_stage(self, lead: Replica, txn: str, part: str, seq: int, ops: tuple[Op, ...]) -> None:
        batch = Batch(lead.state.version, ops)
        answer = Message(txn, "staged", (lead.group.name, part, seq))
        lead.propose(("stage", txn, part, seq, batch), answer)

    def _on_keep(self, lead: Replica, txn: str) -> None:
        lead.propose(("keep", txn))

    def _on_drop(self, lead: Replica, txn: str, request: Any) -> None:
        """Drop a stage; the coordinator that asked with a request is answered."""
        answer = None if request is None else Message("catalog", "dropped", (request,))
        lead.propose(("drop", txn, None), answer)

    def _on_write(self, lead: Replica, number: int, ops: tuple[Op, ...], seen: int) -> None:
        if not self.writes_wait(lead) and self.world.history.first(number):
            answer = Message("writer", "written", (number, lead.group.name))
            lead.propose(("write", ops, number), answer, above=seen)

    def _on_alter(self, lead: Replica, strict: bool) -> None:
        if "alter-at-once" in self.weak or not self.writes_wait(lead):
            lead.propose(("alter", strict))

    def _on_read(self, lead: Replica, at: int, begun: int, fresh: bool) -> None:
        lead.server.merge(at)
        lead.led.reads.append(Read("snapshot", at, len(lead.log), begun, fresh))

    def _on_lookup(self, lead: Replica, begun: int) -> None:
        """L: under a lease, answer at once if nothing is prepared."""
        leased = lead.server.time.now < lead.led.lease_until and lead.serving()
        free = not lead.state.prepared or {"lease-ignores", "no-read-wait"} & self.weak
        if leased and free:
            self.world.history.saw("look-up", lead, lead.applied_stamp, begun, True)
        else:
            at = lead.server.now()
            lead.led.reads.append(Read("look-up", at, len(lead.log), begun, True))

    # ---- messages of the coordinator ---------------------------------------------------------------

    def _on_prepare(
        self, lead: Replica, txn: str, attempt: Attempt, parts: Parts, settled: int
    ) -> None:
        answer = Message("catalog", "vote", (txn, attempt, lead.group.name))
        prepared = lead.state.prepared.get(txn)
        if prepared and (prepared.attempt == attempt or "silent-again" in self.weak):
            self.world.send(answer, ("prepared", prepared.at))
        elif not any(e.op[:3] == ("prepare", txn, attempt) for e in lead.pending()):
            lead.propose(("prepare", txn, attempt, parts, settled), answer)

    def _on_unprepare(self, lead: Replica, txn: str, bound: Attempt) -> None:
        """Propose it only for what is prepared; a prepare that is not applied is asked about later."""
        prepared = lead.state.prepared.get(txn)
        if prepared is None or any(e.op[:2] == ("unprepare", txn) for e in lead.pending()):
            return
        if prepared.attempt <= bound or "unprepare-any" in self.weak:
            lead.propose(("unprepare", txn, bound))

    def _on_resolve(self, lead: Replica, txn: str, at: int) -> None:
        """Take a commit time; a leader that does not know the transaction proposes that it be dropped.

        It was replaced without its knowledge, or, outside of this model, an unsafe recovery lost the prepare.
        """
        state = lead.state
        if txn in state.prepared and txn not in state.resolving:
            lead.led.memory.times[txn] = at
            if "low-resolve" not in self.weak:
                lead.server.merge(at)
            self.resolve_some(lead)
        elif txn in state.ended or txn in state.resolving or at <= state.settled:
            self.world.send(Message("catalog", "resolved", (txn, lead.group.name)))
        elif txn not in state.resolving:
            lead.propose(("drop", txn, None), Message("catalog", "absent", (txn, lead.group.name)))

    # ---- reads: rules R and L ----------------------------------------------------------------------

    def readable(self, lead: Replica) -> int:
        """Return the latest time that no prepared transaction can become visible at or below."""
        latest, state = NEVER, lead.state
        for txn, prepared in state.prepared.items():
            if txn in state.resolving:
                known = state.resolving[txn][0]
            else:
                known = lead.led.memory.times.get(txn, prepared.at + 1)
            latest = min(latest, known - 1)
        return latest

    def settle(self, lead: Replica) -> None:
        """Answer the reads that are due."""
        left = []
        for read in lead.led.reads:
            due = read.confirmed and (lead.applied >= read.upto or lead.applied_stamp >= read.at)
            if not due or not self._answered(lead, read):
                left.append(read)
        lead.led.reads = left

    def _answered(self, lead: Replica, read: Read) -> bool:
        """R: answer a read, or the part of a closing round that can be answered; return whether it was."""
        at, limit = read.at, self.readable(lead)
        if "no-read-wait" in self.weak or (read.kind == "closing" and "stale-closed" in self.weak):
            limit = NEVER
        if read.kind == "closing":
            lead.closed = max(lead.closed, min(at, limit))
            return True
        if at > limit:
            return False
        if read.kind == "look-up" and not {"latest-early", "no-read-wait"} & self.weak:
            if lead.state.prepared:
                return False
            at = max(at, lead.applied_stamp)
        lead.closed = max(lead.closed, read.at)
        self.world.history.saw(read.kind, lead, at, read.begun, read.fresh)
        return True

    # ---- writes and resolves: rules W and O --------------------------------------------------------

    def writes_wait(self, lead: Replica) -> bool:
        """W: return whether a prepare of the log is neither undone nor completely resolved by it."""
        if "no-write-wait" in self.weak:
            return False
        forgotten = "wait-forgotten" in self.weak
        if not lead.serving() and not forgotten:
            return True
        prepares = [e for e in lead.pending() if e.op[0] == "prepare"]
        if any(e.term == lead.term or not forgotten for e in prepares):
            return True
        return any(not self._last_slice_in_log(lead, t) for t in lead.state.prepared)

    def _last_slice_in_log(self, lead: Replica, txn: str) -> bool:
        state: TabletState = lead.state
        for entry in lead.pending():
            kind, *args = entry.op
            if kind == "slice" and args[0] == txn:
                return bool(args[1] <= SLICE) or "slice-open" in self.weak
            if kind == "resolve" and args[0] == txn and txn in state.prepared:
                short = len(state.staged(txn, state.prepared[txn].parts)) <= SLICE
                return short or "slice-open" in self.weak
        return "slice-open" in self.weak and txn in state.resolving

    def resolve_some(self, lead: Replica) -> None:
        """O: propose the next slice, or the resolve with the lowest commit time."""
        state = lead.state
        proposed = [e.op for e in lead.pending() if e.op[0] in ("resolve", "slice")]
        for txn, (_, left) in state.resolving.items():
            if ("slice", txn, len(left)) not in proposed:
                lead.propose(("slice", txn, len(left)))
        if state.resolving:
            return
        times = lead.led.memory.times
        resolved = {op[1] for op in proposed if op[0] == "resolve"}
        waiting = sorted((times[t], t) for t in state.prepared if t in times and t not in resolved)
        if waiting and self._next(lead, *waiting[0]):
            at, txn = waiting[0]
            lead.propose(("resolve", txn, at), above=0 if "low-resolve" in self.weak else at)

    def _next(self, lead: Replica, at: int, txn: str) -> bool:
        """O: return whether no other prepared transaction may have a lower commit time."""
        if "any-order" in self.weak:
            return True
        times = lead.led.memory.times
        others: list[tuple[str, Prepared]] = [
            o for o in lead.state.prepared.items()
            if o[0] != txn and not self._last_slice_in_log(lead, o[0])
        ]  # fmt: skip
        return all(times.get(t, prepared.at + 1) > at for t, prepared in others)

    # ---- time --------------------------------------------------------------------------------------

    def upkeep(self, lead: Replica) -> None:
        """Close a time, ask what became of prepared transactions, drop stages whose time is over."""
        if not lead.serving():
            return
        self.resolve_some(lead)
        chance, state = self.world.chance, lead.state
        if chance.random() < 0.3 and lead.log[-1].stamp > lead.closed:
            lead.led.reads.append(Read("closing", lead.server.now(), len(lead.log)))
        for txn in state.prepared:
            known = txn in lead.led.memory.times or txn in state.resolving
            if not known and chance.random() < 0.3:
                self.world.send(Message("catalog", "status", (txn, lead.group.name)))
        for txn, stage in state.stages.items():
            bound = lead.server.peek() - self.world.stage_timeout
            prepared = txn in state.prepared and "expire-prepared" not in self.weak
            if stage.kept > bound or prepared:
                continue
            if not any(e.op[:2] == ("drop", txn) for e in lead.pending()):
                lead.propose(("drop", txn, bound))
