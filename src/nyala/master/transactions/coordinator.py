"""The leader master as the coordinator of transactions, in one term. Rules C, A, K, I, F, N and D.

docs/internals/transactions.md has the rules by letter, and `tests/model/transactions/coordinator.py` the same
coordinator in a model. A commit is carried out by a task of its own, which the client that asked does not
cancel: several requests of one transaction wait for the same task.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from nyala.common.errors import NyalaError
from nyala.common.ids import TabletId
from nyala.env.env import Env
from nyala.master.ddl.operation import LeaderMemory
from nyala.master.transactions.attempts import TransactionAttempts
from nyala.master.transactions.commits import Commits
from nyala.master.transactions.decision import gone
from nyala.master.transactions.denials import Denials
from nyala.master.transactions.ends import TransactionEnds
from nyala.master.transactions.keys import ANYONE, KeyUser
from nyala.master.transactions.participants import UNPREPARE_MS
from nyala.master.transactions.tablet_calls import is_busy, is_outcome
from nyala.tablet.files.transaction_ops import TransactionOutcome
from nyala.wire.backoff import Backoff
from nyala.wire.proto import transactions_pb2 as txn

log = logging.getLogger(__name__)

_Kind = txn.TxnOutcome
_Answer = txn.TxnStatusAnswer


class TransactionCoordinator:
    """Commits, aborts and statuses. On the loop only.

    Args:
        env: tasks, clock, random source.
        memory: memory of the term.
        attempts: attempts of the term.
        commits: carries out one pass of a commit.
        denials: answers that a transaction is not committed.
        ends: ends transactions.
    """

    def __init__(
        self,
        env: Env,
        memory: LeaderMemory,
        attempts: TransactionAttempts,
        commits: Commits,
        denials: Denials,
        ends: TransactionEnds,
    ) -> None:
        self._env = env
        self._memory = memory
        self._attempts = attempts
        self._commits = commits
        self._denials = denials
        self._ends = ends
        self._running: dict[bytes, asyncio.Task[object]] = {}

    @property
    def running(self) -> list[bytes]:
        """Transactions whose commit is being carried out."""
        return list(self._running)

    def stop(self) -> None:
        """End the commits that are being carried out: their clients ask the next leader master.

        A row that was proposed runs to its end, and tablets that are prepared ask what became of it.
        """
        for task in list(self._running.values()):
            task.cancel()

    async def commit(self, request: txn.TxnCommitRequest, user: KeyUser) -> txn.TxnOutcome:
        """Commit a transaction, or return what became of it; NONE: not decided within the time.

        Args:
            request: the commit.
            user: that asks for it.

        Raises:
            InvalidArgument, Forbidden: it can never be committed as it was asked for.
            NotLeader, Unavailable, TimedOut: ask the leader master again.
        """
        end_us = self._env.clock.monotonic_us() + request.timeout_ms * 1000
        backoff = Backoff(self._env.random, 20, 500)
        while True:
            self._memory.check()
            outcome = await self._wait(self._task_of(request, user), end_us)
            if outcome.kind != _Kind.NONE:
                return outcome
            if is_busy(outcome):
                backoff.reset()  # it ends with the transactions that are prepared there
            pause_ms = backoff.next_ms()
            if self._env.clock.monotonic_us() + pause_ms * 1000 >= end_us:
                return outcome
            await self._env.tasks.sleep_ms(pause_ms)

    async def abort(self, request: txn.TxnAbortRequest) -> txn.TxnOutcome:
        """End a transaction that has no decision: DENIED once a tablet of its commit has dropped its stage.

        A client names the parts of its commit. An operator has no parts, and may name tablets that the commit
        does not: the abort becomes a row of the catalog, so that it refuses what is staged later too. So does
        that of a transaction without tablets.

        UNKNOWN, with a time: it was not committed after it, and a decision before would have been removed. An
        operator has no stamp of the transaction (`since` is 0), so this is the answer once any was removed.

        Raises:
            NotLeader, Unavailable, TimedOut: ask the leader master again.
        """
        transaction = request.transaction
        end_us = self._env.clock.monotonic_us() + request.timeout_ms * 1000
        while True:
            self._memory.check()
            attempted = self._attempts.under_way.get(transaction)
            decided = transaction in self._memory.catalog.decisions.rows
            if not decided and (attempted is None or not attempted.decided_at):
                break
            asked = txn.TxnCommitRequest(
                transaction=transaction
            )  # it is too late: wait for the commit
            outcome = await self._wait(self._task_of(asked, ANYONE), end_us)
            if outcome.kind != _Kind.NONE or self._env.clock.monotonic_us() >= end_us:
                return outcome
        if attempted is not None:
            self._commits.give_up(attempted)
        tablets = tuple(TabletId(p.tablet_id) for p in request.participants)
        if not request.since:
            return await self._abort_for_good(transaction, tablets, end_us)
        if self._denials.forgotten(request.since, None, None):
            return txn.TxnOutcome(kind=_Kind.UNKNOWN)
        if not tablets or not all(p.parts for p in request.participants):
            return await self._abort_for_good(transaction, tablets, end_us, request.since)
        if not gone(self._memory.catalog, tablets):
            found = await self._ends.drop(transaction, tablets, self._left_ms(end_us))
            if not any(is_outcome(r, TransactionOutcome.GONE) for r in found.values()):
                return txn.TxnOutcome(
                    errors=found.values(),
                    reason="no tablet has confirmed that it dropped the stage; ask again",
                )
        return await self._denials.deny(transaction, None, request.since, (), "it was aborted")

    async def _abort_for_good(
        self, transaction: bytes, tablets: tuple[TabletId, ...], end_us: int, since: int = 0
    ) -> txn.TxnOutcome:
        """Record that a transaction is aborted; then free its stages.

        Args:
            transaction: its id.
            tablets: those with a stage, as far as is known.
            end_us: deadline.
            since: a stamp below any commit time that it can have; 0: none is known.
        """
        await self._ends.record(transaction)
        limit_ms = min(UNPREPARE_MS, self._left_ms(end_us))  # the outcome does not depend on it
        await self._ends.drop(transaction, tablets, limit_ms)
        removed = self._memory.catalog.decisions.marks.removed
        if since <= removed and removed:
            return txn.TxnOutcome(kind=_Kind.UNKNOWN, at=removed)
        return txn.TxnOutcome(kind=_Kind.DENIED, reason="it was aborted")

    def _left_ms(self, end_us: int) -> int:
        return max(1, (end_us - self._env.clock.monotonic_us()) // 1000)

    def status(self, prepared: txn.TxnPrepared) -> txn.TxnStatusAnswer:
        """Return what a tablet is to do that is prepared for a transaction. Rules A and D."""
        row = self._memory.catalog.decisions.rows.get(prepared.transaction)
        if row is not None:
            return txn.TxnStatusAnswer(kind=_Answer.RESOLVE, at=row.at)
        if gone(self._memory.catalog, (TabletId(prepared.tablet_id),)):
            return txn.TxnStatusAnswer(kind=_Answer.DELETED)
        if prepared.transaction in self._attempts.under_way:
            return txn.TxnStatusAnswer(kind=_Answer.WAIT)
        return txn.TxnStatusAnswer(kind=_Answer.UNPREPARE, bound=self._attempts.new())

    def _task_of(self, request: txn.TxnCommitRequest, user: KeyUser) -> "asyncio.Task[object]":
        """Return the task that carries out the commit of a transaction, a new one if there is none."""
        transaction = request.transaction
        task = self._running.get(transaction)
        if task is None:
            work = _caught(self._commits.run(request, user))
            task = self._env.tasks.spawn(work, f"commit {transaction.hex()}")
            self._running[transaction] = task
            task.add_done_callback(lambda _: self._running.pop(transaction, None))
        return task

    async def _wait(self, task: "asyncio.Task[object]", end_us: int) -> txn.TxnOutcome:
        """Return the outcome of a task, or NONE when the time is over; the task goes on.

        Raises:
            NyalaError: as the task did.
        """
        over = asyncio.Event()
        left_us = max(1, end_us - self._env.clock.monotonic_us())
        timer = asyncio.get_running_loop().call_later(left_us / 1e6, over.set)
        task.add_done_callback(lambda _: over.set())
        try:
            await over.wait()
        finally:
            timer.cancel()
        if not task.done() or task.cancelled():
            self._memory.check()
            return txn.TxnOutcome(reason="it is not decided and resolved yet; ask again")
        result = task.result()
        if isinstance(result, NyalaError):
            raise result
        assert isinstance(result, txn.TxnOutcome), result
        return result


async def _caught(
    work: Coroutine[Any, Any, txn.TxnOutcome],
) -> txn.TxnOutcome | NyalaError:
    """Run a commit; return its error instead of raising it: there may be no one left who waits."""
    try:
        return await work
    except NyalaError as err:
        return err
