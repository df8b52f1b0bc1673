"""The coordinator's requests to the participants of a transaction: check, prepare, unprepare, drop."""

from collections.abc import Collection, Mapping, Sequence

from nyala.common.ids import TabletId
from nyala.common.options import Options
from nyala.master.transactions.tablet_calls import Results, TabletCalls
from nyala.tablet.files.transaction_ops import MAX_REFUSE_S, TransactionOutcome
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import transactions_pb2 as txn

UNPREPARE_MS = 2_000
"""Time for which an UNPREPARE is sent; a tablet that stays prepared asks for its status."""


class Participants:
    """Requests about the stages of one transaction. On the loop only.

    Args:
        calls: sends them.
        options: options of this master.
        fence: of the term in which this master leads.
    """

    def __init__(self, calls: TabletCalls, options: Options, fence: pb.Fence) -> None:
        self._calls = calls
        self._options = options
        self._fence = fence

    @property
    def refuse_s(self) -> int:
        """Time for which a tablet refuses a transaction that has ended: longer than results are kept."""
        return min(2 * self._options.client_result_ttl_s, MAX_REFUSE_S)

    async def check(self, tablets: Collection[TabletId]) -> Results:
        """Ask whether each tablet has a leader that could prepare; not asked if one server leads them all."""
        if len(tablets) < 2 or self._calls.one_request(tablets):
            return {}

        def make(some: Sequence[TabletId], _: int) -> txn.TxnCheckRequest:
            return txn.TxnCheckRequest(tablet_ids=some)

        limit_ms = self._options.txn_prepare_timeout_ms
        return await self._calls.ask(methods.TXN_CHECK, make, tablets, timeout_ms=limit_ms)

    async def prepare(
        self,
        transaction: bytes,
        attempt: txn.TxnAttempt,
        participants: Mapping[TabletId, txn.TxnParticipant],
        settled: int,
    ) -> Results:
        """Have each tablet prepare; ends early when one of them does not.

        Args:
            transaction: its id.
            attempt: number of the attempt.
            participants: with their parts.
            settled: no decision has a commit time at or below it, or will.
        """

        def make(some: Sequence[TabletId], timeout_ms: int) -> txn.TxnPrepareRequest:
            return txn.TxnPrepareRequest(
                transaction=transaction, attempt=attempt, participants=[participants[t] for t in some],
                settled=settled, refuse_s=self.refuse_s, timeout_ms=timeout_ms, fence=self._fence,
            )  # fmt: skip

        return await self._calls.ask(
            methods.TXN_PREPARE,
            make,
            participants,
            timeout_ms=self._options.txn_prepare_timeout_ms,
            enough=lambda result: result.outcome != TransactionOutcome.DONE,
        )

    async def unprepare(
        self, transaction: bytes, bound: txn.TxnAttempt, tablets: Collection[TabletId]
    ) -> Results:
        """Undo what attempts at or below a bound have prepared.

        Args:
            transaction: its id.
            bound: greatest attempt that is undone.
            tablets: participants.
        """

        def make(some: Sequence[TabletId], _: int) -> txn.TxnUnprepareRequest:
            return txn.TxnUnprepareRequest(
                transaction=transaction, bound=bound, tablet_ids=some, fence=self._fence
            )

        return await self._calls.ask(methods.TXN_UNPREPARE, make, tablets, timeout_ms=UNPREPARE_MS)

    async def drop(
        self, transaction: bytes, tablets: Collection[TabletId], timeout_ms: int
    ) -> Results:
        """Have each tablet drop its stage, and refuse the transaction from then on.

        Args:
            transaction: its id.
            tablets: participants.
            timeout_ms: deadline, from now.
        """

        def make(some: Sequence[TabletId], _: int) -> txn.TxnDropRequest:
            return txn.TxnDropRequest(
                transaction=transaction, tablet_ids=some, refuse_s=self.refuse_s
            )

        return await self._calls.ask(methods.TXN_DROP, make, tablets, timeout_ms=timeout_ms)
