"""Staging of batches: a write of a client session that becomes visible when its transaction commits.

A batch of rows was validated as a write; a condition is validated as it is applied. The space that staged
batches take is checked before anything is proposed.
Used on the event loop only.
"""

from collections import Counter

from nyala.common.errors import (
    CasFailed,
    InvalidArgument,
    NotFound,
    NyalaError,
    RangesChanged,
    Throttled,
    TooLarge,
)
from nyala.common.ids import TabletId
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.machines import registry
from nyala.tablet.files.replicated_ops import RANGE_DROPPED
from nyala.tablet.files.transaction_ops import (
    StageDeleteOp,
    StageOp,
    TransactionOutcome,
    TransactionResult,
    crc_of_batch,
    decode_result,
    encode,
)
from nyala.tablet.tablet import Tablet
from nyala.tserver.tablets import HostedTablet, Tablets, replicate
from nyala.wire.proto import nyala_pb2 as pb

RETRY_AFTER_MS = 500
TOTAL_AGE_US = 250_000
"""Age above which the staged bytes of all tablets are added up again, in microseconds."""


class BatchStaging:
    """Stages batches in the tablets that this server leads.

    Args:
        env: time.
        tablets: tablets of this server.
        options: limits and default deadline.
    """

    def __init__(self, env: Env, tablets: Tablets, options: Options) -> None:
        self._env = env
        self._tablets = tablets
        self._options = options
        self._in_flight: Counter[TabletId] = Counter()
        self._total_bytes = 0  # of all tablets, as of `_total_us`, and what was staged since
        self._total_us: int | None = None

    async def stage(
        self, hosted: HostedTablet, header: pb.WriteHeader, batch: bytes
    ) -> pb.WriteResult:
        """Stage a batch; return its result once it is committed.

        Args:
            hosted: the tablet.
            header: of the batch; names the transaction.
            batch: the encoded write.

        Raises:
            InvalidArgument: an id or a name outside its limits.
            Throttled, TooLarge: there is no space; nothing was proposed.
            NotFound, CasFailed: the transaction has ended here, or is prepared; details have the `reason`.
            NyalaError: as `replicate`.
        """
        stage = header.stage
        payload = encode(StageOp(stage.transaction, stage.part, stage.number, batch))
        return await self._propose(hosted, header, payload, batch)

    async def delete_where(self, hosted: HostedTablet, header: pb.WriteHeader) -> pb.WriteResult:
        """Stage a delete by condition; return its result once it is committed.

        Args:
            hosted: the tablet.
            header: of the request; names the transaction and the condition.

        Raises:
            InvalidArgument: an id, a name or a condition outside its limits, or no transaction.
            Throttled, TooLarge, NotFound, CasFailed, NyalaError: as `stage`.
        """
        if not header.HasField("stage"):
            raise InvalidArgument(
                "DELETE_WHERE belongs to a transaction: give a StageHeader, or read the rows and delete them"
            )
        stage, version = header.stage, header.schema_version
        op = StageDeleteOp(stage.transaction, stage.part, stage.number, version, stage.where)
        payload = encode(op)
        return await self._propose(hosted, header, payload, payload)

    def has(self, hosted: HostedTablet, header: pb.WriteHeader) -> bool:
        """Return whether a batch is staged already; its copies are always answered."""
        wanted = header.stage
        return header.HasField("stage") and hosted.tablet.stages.has_batch(
            wanted.transaction, wanted.part, wanted.number
        )

    async def _propose(
        self, hosted: HostedTablet, header: pb.WriteHeader, payload: bytes, batch: bytes
    ) -> pb.WriteResult:
        """Replicate the operation that stages a batch."""
        replica, size = hosted.replica, len(batch)
        if replica.is_leader and not self.has(hosted, header):
            self._check_space(hosted, header.stage.transaction, size)
        self._in_flight[replica.group] += size
        try:
            outcome = await replicate(
                replica, payload, header, self._options.write_timeout_ms, staged=True
            )
        finally:
            self._in_flight[replica.group] -= size
            if not self._in_flight[replica.group]:
                del self._in_flight[replica.group]
        self._total_bytes += size
        result = decode_result(outcome.result)
        _raise_if_over(header, result)
        return pb.WriteResult(
            request=header.request,
            timestamp=outcome.stamp,
            duplicate=outcome.duplicate,
            row_errors=[
                pb.RowError(row=e.row, code=e.code, message=e.message) for e in result.errors
            ],
            crc=crc_of_batch(batch),
        )

    def _check_space(self, hosted: HostedTablet, transaction: bytes, size: int) -> None:
        stages, group = hosted.tablet.stages, hosted.replica.group
        limit, total = self._options.txn_stage_bytes, self._options.txn_stage_total_bytes
        own = stages.size_of(transaction) + size
        if own > min(limit, total):
            raise TooLarge(
                f"transaction {transaction.hex()} would have {own} staged bytes in tablet {group}, over "
                f"{'txn_stage_bytes' if limit <= total else 'txn_stage_total_bytes'} ({min(limit, total)}); "
                "commit smaller transactions, or raise the option on all servers",
                {"limit": str(min(limit, total)), "size": str(own)},
            )
        used = stages.size_bytes + self._in_flight[group]
        if used + size > limit:
            raise _full(f"{used} bytes are staged in tablet {group}", f"txn_stage_bytes ({limit})")
        used = self._staged_bytes() + self._in_flight.total()
        if used + size > total:
            raise _full(
                f"{used} bytes are staged on this server", f"txn_stage_total_bytes ({total})"
            )

    def _staged_bytes(self) -> int:
        """Return the staged bytes of all tablets, a moment ago."""
        now_us = self._env.clock.monotonic_us()
        if self._total_us is None or now_us - self._total_us > TOTAL_AGE_US:
            self._total_us = now_us
            self._total_bytes = sum(t.stages.size_bytes for _, t in tablets_of(self._tablets))
        return self._total_bytes


def tablets_of(tablets: Tablets) -> list[tuple[TabletId, Tablet]]:
    """Return the tablets of tables that run on this server."""
    found = []
    for replica in tablets.host.all():
        if replica.member is not None:
            tablet = registry.of_class(replica.machine, Tablet)
            if tablet is not None:
                found.append((replica.group, tablet))
    return found


def _full(what: str, limit: str) -> Throttled:
    return Throttled(
        f"{what}, and one more batch would exceed {limit}; the batch was not staged: retry when other "
        "transactions have ended (nyala txn list), or raise the option on all servers",
        {"retry_after_ms": str(RETRY_AFTER_MS)},
    )


def _raise_if_over(header: pb.WriteHeader, result: TransactionResult) -> None:
    """Raise the error of a batch whose transaction takes no batches here."""
    transaction, tablet = header.stage.transaction.hex(), header.tablet_id
    errors: dict[TransactionOutcome, NyalaError] = {
        TransactionOutcome.GONE: NotFound(
            f"transaction {transaction} was dropped in tablet {tablet}: it was aborted, or had no batch for "
            "txn_timeout_s; nothing of it takes effect: begin another one",
            {"reason": "TXN_GONE"},
        ),
        TransactionOutcome.PREPARED: CasFailed(
            f"transaction {transaction} is being committed, so tablet {tablet} takes no further batch of it; "
            "write all batches before the commit",
            {"reason": "TXN_PREPARED"},
        ),
        TransactionOutcome.ENDED: CasFailed(
            f"transaction {transaction} was committed before this batch came to tablet {tablet}; the batch "
            "does not take effect: write it in another transaction",
            {"reason": "TXN_ENDED", "at": str(result.time)},
        ),
    }
    if result.outcome in errors:
        raise errors[result.outcome]
    if any(e.code == RANGE_DROPPED for e in result.errors):
        raise RangesChanged(
            f"the range of tablet {tablet} was dropped; nothing was staged; read the table's ranges again"
        )
