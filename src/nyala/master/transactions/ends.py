"""Ends of transactions without effect, as evidence for denials: dropped stages, recorded aborts. A and N."""

from collections.abc import Callable, Collection

from nyala.common.ids import TabletId
from nyala.env.env import Env
from nyala.master.catalog.detached import detached
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.ddl import operation
from nyala.master.ddl.operation import LeaderMemory
from nyala.master.transactions import decision
from nyala.master.transactions.attempts import TransactionAttempts
from nyala.master.transactions.participants import Participants
from nyala.master.transactions.tablet_calls import Results, is_outcome
from nyala.tablet.files.transaction_ops import TransactionOutcome


class TransactionEnds:
    """Ends of one coordinator in one term. On the loop only.

    Args:
        env: tasks.
        memory: memory of the term.
        attempts: attempts of the term.
        participants: requests to the tablets.
        now: returns a new hybrid time.
    """

    def __init__(
        self,
        env: Env,
        memory: LeaderMemory,
        attempts: TransactionAttempts,
        participants: Participants,
        now: Callable[[], int],
    ) -> None:
        self._env = env
        self._memory = memory
        self._attempts = attempts
        self._participants = participants
        self._now = now

    async def drop(
        self, transaction: bytes, tablets: Collection[TabletId], timeout_ms: int
    ) -> Results:
        """Have tablets drop their stages; those that are still prepared are unprepared first.

        Args:
            transaction: its id; no attempt of it is under way.
            tablets: participants.
            timeout_ms: limit of each of the two requests.

        Returns:
            The result of each tablet; GONE: it has no stage, and will have none.
        """
        found = await self._participants.drop(transaction, tablets, timeout_ms)
        prepared = [t for t, r in found.items() if is_outcome(r, TransactionOutcome.PREPARED)]
        decided = transaction in self._memory.catalog.decisions.rows
        if not prepared or decided or transaction in self._attempts.under_way:
            return found
        self._memory.check()
        await self._participants.unprepare(transaction, self._attempts.new(), prepared)
        return found | await self._participants.drop(transaction, prepared, timeout_ms)

    async def record(self, transaction: bytes) -> None:
        """Write a row that no commit of a transaction passes, whatever it names.

        Args:
            transaction: its id; no attempt of it is under way, and none begins meanwhile.

        Raises:
            NyalaError: as `operation.run`; it may be recorded or not.
        """
        self._attempts.aborting.add(transaction)

        async def write() -> CatalogPlan:
            try:
                return await operation.run(decision.abort(transaction, self._now), self._memory)
            finally:
                self._attempts.aborting.discard(transaction)

        await detached(self._env, write())
