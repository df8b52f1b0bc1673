"""One pass of a commit: what became of the transaction, or else an attempt. Rules C, A, I, K and D."""

from collections.abc import Callable
from typing import Protocol

from nyala.common.errors import NotFound, NyalaError
from nyala.common.ids import TabletId
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.master.catalog.detached import detached
from nyala.master.catalog.locks import Locks
from nyala.master.catalog.plan import Scope
from nyala.master.ddl import operation
from nyala.master.ddl.operation import LeaderMemory
from nyala.master.transactions import decision, keys
from nyala.master.transactions.attempts import TransactionAttempts, Try
from nyala.master.transactions.denials import Denials
from nyala.master.transactions.ends import TransactionEnds
from nyala.master.transactions.keys import KeyState, KeyUse, KeyUser
from nyala.master.transactions.participants import Participants
from nyala.master.transactions.resolver import Resolver
from nyala.master.transactions.tablet_calls import Results, is_outcome
from nyala.tablet.files.transaction_ops import TransactionOutcome
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import transactions_pb2 as txn

_Kind = txn.TxnOutcome


class CommitClock(Protocol):
    """The hybrid clock of the masters' group, from which the stamps of its log come too."""

    def now(self) -> int:
        """Return a new hybrid time, above every one returned or merged before."""
        ...

    async def advance_past(self, stamp: int) -> None:
        """Advance past a received hybrid time."""
        ...


class Commits:
    """Commits of one coordinator in one term. On the loop only.

    Args:
        env: tasks, clock.
        memory: memory of the term.
        attempts: attempts of the term.
        participants: requests to the tablets.
        resolver: resolves decisions.
        denials: answers that a transaction is not committed.
        ends: ends transactions.
        clock: hybrid clock of this master.
        options: options of this master.
        ready: raises if some server has no transactions.
    """

    def __init__(
        self,
        env: Env,
        memory: LeaderMemory,
        attempts: TransactionAttempts,
        participants: Participants,
        resolver: Resolver,
        denials: Denials,
        ends: TransactionEnds,
        clock: CommitClock,
        options: Options,
        ready: Callable[[], None],
    ) -> None:
        self._env = env
        self._memory = memory
        self._attempts = attempts
        self._participants = participants
        self._resolver = resolver
        self._denials = denials
        self._ends = ends
        self._clock = clock
        self._options = options
        self._ready = ready
        self.key_locks = Locks()

    async def run(self, request: txn.TxnCommitRequest, user: KeyUser) -> txn.TxnOutcome:
        """Carry out one pass; NONE: there is no decision, and another pass may make one.

        Args:
            request: the commit.
            user: that asks for it.

        Raises:
            Forbidden: some server has no transactions.
            NotLeader, Unavailable, TimedOut: this master may not lead any more.
        """
        if self._row(request) is not None or not request.HasField("key"):
            return await self._locked(request, None)
        async with self.key_locks.hold(Scope(names=(request.key.name,))):
            # held from the look-up of the key to the committed row
            return await self._locked(request, KeyUse(request.key, user, request.transaction))

    def give_up(self, attempted: Try) -> None:
        """End an attempt that has no row; its tablets are unprepared in the background. Rule A."""
        assert not attempted.decided_at, attempted
        self._attempts.end(attempted)
        bound = self._attempts.new()
        undo = self._participants.unprepare(attempted.transaction, bound, attempted.tablets)
        self._env.tasks.spawn(undo, f"unprepare {attempted.transaction.hex()}")

    def _row(self, request: txn.TxnCommitRequest) -> cat.DecisionRecord | None:
        return self._memory.catalog.decisions.rows.get(request.transaction)

    async def _locked(self, request: txn.TxnCommitRequest, use: KeyUse | None) -> txn.TxnOutcome:
        row = self._row(request)
        if row is not None:
            return await self._committed(row)
        tablets = tuple(TabletId(p.tablet_id) for p in request.participants)
        taken = None if use is None else await self._denials.key(use.key.name)
        if use is not None:
            found = keys.verdict(use, taken)
            if found.state is KeyState.TAKEN and taken is not None:
                return await self._taken(request.transaction, taken)
            if found.state is KeyState.REFUSED:
                return await self._refuse(request, tablets, use, found.reason)
        if request.transaction in self._memory.catalog.decisions.aborted:
            return await self._deny(request, use, "it was aborted")
        if dropped := decision.gone(self._memory.catalog, tablets):
            return await self._deny(request, use, f"tablet {dropped[0]} was dropped")
        if why := decision.changed(self._memory.catalog, request.covered):
            return await self._deny(request, use, why)
        if self._denials.forgotten(request.since, use, taken):
            return txn.TxnOutcome(kind=_Kind.UNKNOWN)
        self._ready()
        if use is None:
            return await self._attempt(request, tablets, None, "")
        return await self._attempt(request, tablets, use.of_table(taken), use.user.owner(taken))

    async def _attempt(
        self,
        request: txn.TxnCommitRequest,
        tablets: tuple[TabletId, ...],
        use: KeyUse | None,
        owner: str,
    ) -> txn.TxnOutcome:
        missing = _failed(await self._participants.check(tablets))
        if missing:
            return _again("some tablet cannot prepare now, or has no leader", missing)
        self._memory.check()
        if request.transaction in self._attempts.aborting:
            return _again("an operator is ending it", ())
        now_us = self._env.clock.monotonic_us()
        attempted = self._attempts.begin(request.transaction, tablets, use, owner, now_us)
        found = await self._participants.prepare(
            request.transaction,
            attempted.attempt,
            {TabletId(p.tablet_id): p for p in request.participants},
            self._memory.catalog.decisions.marks.settled,
        )
        self._memory.check()
        if attempted.ended:
            return _again("the attempt was given up for an abort", ())
        done = [r for r in found.values() if is_outcome(r, TransactionOutcome.DONE)]
        if len(done) == len(tablets):
            prepared = max((r.time for r in done), default=0)
            return await self._decide(request, use, attempted, prepared)
        self.give_up(attempted)
        return await self._not_prepared(request, use, found)

    async def _not_prepared(
        self, request: txn.TxnCommitRequest, use: KeyUse | None, found: Results
    ) -> txn.TxnOutcome:
        """Return the outcome of an attempt that some tablet did not prepare."""
        if refused := [r for r in found.values() if is_outcome(r, TransactionOutcome.GONE)]:
            return await self._deny(request, use, "a tablet cannot commit its part", refused)
        others = [r for r in found.values() if not is_outcome(r, TransactionOutcome.DONE)]
        return _again("some tablet was not prepared in time", others)

    async def _decide(
        self, request: txn.TxnCommitRequest, use: KeyUse | None, attempted: Try, prepared: int
    ) -> txn.TxnOutcome:
        """Propose the row, with a commit time above all prepares. Rule C."""
        prepared = prepared or self._clock.now()  # no participants: only the key takes effect
        try:
            await self._clock.advance_past(prepared)
        except (NyalaError, OSError) as err:
            if not attempted.ended:
                self.give_up(attempted)
            return _again(f"the clock cannot pass the prepare times: {err}", ())
        ahead_us = self._options.clock_max_ahead_ms * 1000
        wanted = decision.decide(attempted, prepared, self._clock.now, ahead_us, request.covered)
        try:
            await detached(self._env, operation.run(wanted, self._memory))
        except NyalaError as err:
            self._memory.check()  # dropped: the row may have been proposed
            attempted.decided_at = 0
            if not attempted.ended:
                self.give_up(attempted)
            if isinstance(err, NotFound):
                return await self._deny(request, use, err.message)
            return _again(err.message, ())
        self._attempts.end(attempted)
        row = self._row(request)
        assert row is not None, request.transaction.hex()
        return await self._committed(row)

    async def _committed(self, row: cat.DecisionRecord) -> txn.TxnOutcome:
        """Answer a commit once each participant has committed its resolve. Rule K."""
        await self._resolver.resolved(row)
        return txn.TxnOutcome(kind=_Kind.COMMITTED, at=row.at)

    async def _taken(self, transaction: bytes, taken: cat.KeyRecord) -> txn.TxnOutcome:
        """Answer a commit whose key is taken, once no decision with that key is left to be resolved."""
        for row in self._memory.catalog.decisions.of_key(taken.key.name):
            await self._resolver.resolved(row)
        if taken.transaction == transaction:
            return txn.TxnOutcome(kind=_Kind.COMMITTED, at=taken.at)
        return txn.TxnOutcome(kind=_Kind.TAKEN, at=taken.at, winner=taken.transaction)

    async def _refuse(
        self,
        request: txn.TxnCommitRequest,
        tablets: tuple[TabletId, ...],
        use: KeyUse,
        reason: str,
    ) -> txn.TxnOutcome:
        """Deny a commit whose key is refused, once a tablet has dropped its stage. Rules I and N.

        The key alone is no evidence: it may be free later, when a late copy of the request arrives. Of a
        transaction without tablets the denial is recorded.
        """
        if not tablets:
            await self._ends.record(request.transaction)
        elif not decision.gone(self._memory.catalog, tablets):
            limit_ms = self._options.txn_prepare_timeout_ms
            found = await self._ends.drop(request.transaction, tablets, limit_ms)
            if not any(is_outcome(r, TransactionOutcome.GONE) for r in found.values()):
                why = f"{reason}, and no tablet has confirmed yet that it dropped its stage"
                return _again(why, list(found.values()))
        return await self._deny(request, use, reason)

    async def _deny(
        self,
        request: txn.TxnCommitRequest,
        use: KeyUse | None,
        reason: str,
        errors: list[txn.TxnTabletResult] | None = None,
    ) -> txn.TxnOutcome:
        return await self._denials.deny(
            request.transaction, use, request.since, errors or (), reason
        )


def _failed(found: Results) -> list[txn.TxnTabletResult]:
    return [r for r in found.values() if not is_outcome(r, TransactionOutcome.DONE)]


def _again(reason: str, errors: list[txn.TxnTabletResult] | tuple[()]) -> txn.TxnOutcome:
    """Return the outcome of a pass without a decision; the request is repeated."""
    return txn.TxnOutcome(reason=reason, errors=errors)
