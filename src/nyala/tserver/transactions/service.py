"""Orders of the coordinator and requests of clients about transactions, in the tablets led from this server.

Requests for several tablets run concurrently; their results are in order, and an error belongs to one result.
Every request may be sent again.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from nyala.admin.fencing import Fence
from nyala.common.errors import InvalidArgument, NyalaError, OutcomeUnknown, RangesChanged
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.env.tasks import Lane
from nyala.tablet.files.replicated_ops import RowError
from nyala.tablet.files.transaction_ops import (
    BUSY,
    DropOp,
    KeepOp,
    PartCount,
    PrepareOp,
    ResolveOp,
    TransactionOutcome,
    TransactionResult,
    UnprepareOp,
    decode_result,
    encode,
)
from nyala.tserver.tablets import HostedTablet, Tablets
from nyala.tserver.transactions.staging import tablets_of
from nyala.wire import methods, status
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import transactions_pb2 as tb

log = logging.getLogger(__name__)

MAX_TABLETS = 10_000
"""Maximum number of tablets of one request."""
CHECK_TIMEOUT_MS = 2_000
"""Time for which a check waits for a leader that was just elected, in milliseconds."""

_BUSY = TransactionResult(
    TransactionOutcome.REFUSED,
    0,
    (
        RowError(
            0, BUSY, "writes and reads have waited for transactions, and go first; prepare it again"
        ),
    ),
)
_Work = Callable[[HostedTablet], Coroutine[Any, Any, TransactionResult]]


MAX_REFUSE_S = 3_600
"""Maximum time, in seconds, for which a client's DROP lets a tablet refuse a transaction."""


class TransactionTablets:
    """Handlers of `TabletTransactions`. Used on the event loop only.

    Args:
        env: lanes.
        tablets: tablets of this server.
        fence: the newest leader master known; orders of older ones are refused.
        options: default deadline.
    """

    def __init__(self, env: Env, tablets: Tablets, fence: Fence, options: Options) -> None:
        self._env = env
        self._tablets = tablets
        self._fence = fence
        self._options = options
        self._refuse_s = min(2 * options.client_result_ttl_s, MAX_REFUSE_S)

    def handlers(self) -> Handlers:
        """Return the handlers of this service."""
        return {
            methods.TXN_CHECK: self.check,
            methods.TXN_KEEP: self.keep,
            methods.TXN_DROP: self.drop,
            methods.TXN_PREPARE: self.prepare,
            methods.TXN_UNPREPARE: self.unprepare,
            methods.TXN_RESOLVE: self.resolve,
            methods.TXN_STAGES: self.stages,
        }

    async def check(self, request: tb.TxnCheckRequest) -> tb.TxnTabletResponse:
        """Return whether this server leads each tablet and could prepare there now."""

        async def one(hosted: HostedTablet) -> TransactionResult:
            await hosted.replica.transactions.check(CHECK_TIMEOUT_MS)
            if hosted.tablet.info.retired_at:
                raise RangesChanged(
                    f"the range of tablet {hosted.replica.group} was dropped; write to the table's present "
                    "ranges in another transaction"
                )
            if hosted.replica.transactions.busy:
                return _BUSY
            return TransactionResult(TransactionOutcome.DONE, hosted.tablet.last_stamp)

        return await self._each([(t, one) for t in request.tablet_ids])

    async def keep(self, request: tb.TxnKeepRequest) -> tb.TxnTabletResponse:
        """Let the time of a stage begin anew in some tablets."""
        op = encode(KeepOp(request.transaction))
        return await self._propose(request.tablet_ids, op)

    async def drop(self, request: tb.TxnDropRequest) -> tb.TxnTabletResponse:
        """Drop the stage of a transaction in some tablets, unless it is prepared."""
        refuse_s = min(request.refuse_s, MAX_REFUSE_S)  # a tablet remembers a bounded number
        op = encode(DropOp(request.transaction, None, refuse_s))
        return await self._propose(request.tablet_ids, op)

    async def unprepare(self, request: tb.TxnUnprepareRequest) -> tb.TxnTabletResponse:
        """Undo what attempts up to a bound have prepared in some tablets.

        Raises:
            CasFailed, Unavailable: see `Fence.check`.
        """
        self._fence.check(request.fence)
        op = encode(UnprepareOp(request.transaction, attempt_of(request.bound)))
        return await self._propose(request.tablet_ids, op, urgent=True)

    async def prepare(self, request: tb.TxnPrepareRequest) -> tb.TxnTabletResponse:
        """Prepare a transaction in some tablets; REFUSED with the error `busy`: not now.

        Raises:
            CasFailed, Unavailable: see `Fence.check`.
        """
        self._fence.check(request.fence)
        timeout_ms = request.timeout_ms or self._options.write_timeout_ms
        attempt = attempt_of(request.attempt)

        def work(participant: tb.TxnParticipant) -> _Work:
            parts = tuple(PartCount(p.part, p.batches, p.crc) for p in participant.parts)
            op = PrepareOp(request.transaction, attempt, parts, request.settled, request.refuse_s)

            async def one(hosted: HostedTablet) -> TransactionResult:
                payload, transactions = encode(op), hosted.replica.transactions
                await transactions.accepting(timeout_ms)
                known = transactions.prepared.get(request.transaction)
                if known is not None and known.attempt == attempt:
                    return TransactionResult(TransactionOutcome.DONE, known.at)
                if known is None and transactions.busy:
                    return _BUSY
                done = await transactions.propose(payload, timeout_ms, prepares=True)
                return decode_result(done.result)

            return one

        return await self._each([(p.tablet_id, work(p)) for p in request.participants])

    async def resolve(self, request: tb.TxnResolveRequest) -> tb.TxnTabletResponse:
        """Apply a committed transaction in some tablets; ENDED once it is applied, GONE: it is lost.

        Raises:
            CasFailed, Unavailable: see `Fence.check`.
        """
        self._fence.check(request.fence)
        timeout_ms = request.timeout_ms or self._options.write_timeout_ms
        transaction, at = request.transaction, request.at
        payload = encode(ResolveOp(transaction, at))

        async def one(hosted: HostedTablet) -> TransactionResult:
            await hosted.replica.transactions.resolve(transaction, at, payload, timeout_ms)
            ended = await self._env.tasks.run_brief(
                Lane.APPLY, hosted.tablet.stages.ended_at, transaction, at
            )
            if ended is None:
                return await self._absent(hosted, transaction, timeout_ms)
            return TransactionResult(TransactionOutcome.ENDED, ended)

        return await self._each([(t, one) for t in request.tablet_ids])

    async def _absent(
        self, hosted: HostedTablet, transaction: bytes, timeout_ms: int
    ) -> TransactionResult:
        """Return what the group's log says of a committed transaction that this leader does not know.

        A leader that was replaced without its knowledge may not know it, and commits no DROP. One whose
        DROP is applied has the whole log. If nothing is prepared there, an unsafe recovery has lost the
        PREPARE, and with it the rows: the stage is of no use, as later versions may be there.
        """
        op = encode(DropOp(transaction, None, self._refuse_s))
        done = await hosted.replica.transactions.propose(op, timeout_ms)
        found = decode_result(done.result)
        if found.outcome is TransactionOutcome.PREPARED:
            return TransactionResult(TransactionOutcome.UNKNOWN, 0)
        if found.outcome is TransactionOutcome.GONE:
            log.error(
                "transaction %s is committed and was not prepared in tablet %s any more: its rows there are "
                "lost, by an unsafe recovery of the tablet or of the masters",
                transaction.hex(), hosted.replica.group,
            )  # fmt: skip
        return found

    async def stages(self, request: tb.TxnStagesRequest) -> tb.TxnStagesResponse:
        """Return the stages of a tablet, or of all that this server leads.

        Raises:
            NotLeader: another replica leads the tablet. Unavailable: it is not here.
        """
        answer = tb.TxnStagesResponse()
        if request.tablet_id:
            hosted = self._tablets.get(request.tablet_id)
            await hosted.replica.transactions.accepting(CHECK_TIMEOUT_MS)
            found = [(hosted.replica.group, hosted.tablet)]
        else:
            led = {r.group for r in self._tablets.host.all() if r.is_leader}
            found = [(group, t) for group, t in tablets_of(self._tablets) if group in led]
        for group, tablet in found:
            if not tablet.stages.stages:
                continue
            for s in await self._env.tasks.run_brief(Lane.APPLY, tablet.stages.listed):
                answer.stages.add(
                    transaction=s.transaction, tablet_id=group, kept=s.kept, bytes=s.size_bytes,
                    batches=s.batches, prepared=s.prepared,
                )  # fmt: skip
        return answer

    async def _propose(
        self, tablet_ids: Sequence[str], payload: bytes, *, urgent: bool = False
    ) -> tb.TxnTabletResponse:
        timeout_ms = self._options.write_timeout_ms

        async def one(hosted: HostedTablet) -> TransactionResult:
            propose = hosted.replica.transactions.propose
            return decode_result((await propose(payload, timeout_ms, urgent=urgent)).result)

        return await self._each([(t, one) for t in tablet_ids])

    async def _each(self, wanted: Sequence[tuple[str, _Work]]) -> tb.TxnTabletResponse:
        if len(wanted) > MAX_TABLETS:
            raise InvalidArgument(
                f"the request names {len(wanted)} tablets, over the limit of {MAX_TABLETS}; send several"
            )
        results = await asyncio.gather(*(self._one(t, work) for t, work in wanted))
        return tb.TxnTabletResponse(results=results)

    async def _one(self, tablet_id: str, work: _Work) -> tb.TxnTabletResult:
        try:
            found = await work(self._tablets.get(tablet_id))
        except NyalaError as err:
            return tb.TxnTabletResult(tablet_id=tablet_id, error=status.to_proto(err))
        except Exception as err:  # an error of one tablet does not affect the others
            log.error("a transaction's request to tablet %s failed", tablet_id, exc_info=err)
            unknown = OutcomeUnknown(
                f"tablet {tablet_id}: internal error of this server ({type(err).__name__}); the request may "
                "or may not take effect; see the server's log"
            )
            return tb.TxnTabletResult(tablet_id=tablet_id, error=status.to_proto(unknown))
        errors = [pb.RowError(row=e.row, code=e.code, message=e.message) for e in found.errors]
        return tb.TxnTabletResult(
            tablet_id=tablet_id, outcome=found.outcome, time=found.time, errors=errors
        )


def attempt_of(attempt: tb.TxnAttempt) -> tuple[int, int, int]:
    """Return an attempt as the tablet orders it."""
    return attempt.incarnation, attempt.term, attempt.number
