"""Operations of transactions on a tablet, for its tests."""

from collections.abc import Sequence
from typing import Any

from nyala.tablet.files import transaction_ops
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.files.transaction_ops import (
    DropOp,
    PartCount,
    PrepareOp,
    ResolveOp,
    StageDeleteOp,
    StageOp,
    TransactionOp,
    TransactionResult,
    UnprepareOp,
    crc_of_batch,
    crc_of_part,
)
from tests.unit.tablet.support.tablet_support import Driver, payload

T1, T2 = b"1" * 16, b"2" * 16
REFUSE_S = 60
FIRST, SECOND = (1, 1, 1), (1, 1, 2)


class Transactions:
    """Applies operations of transactions, and remembers what was staged.

    Args:
        driver: the tablet and its log.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.parts: dict[bytes, dict[str, list[bytes]]] = {}

    def apply(self, op: TransactionOp, step: int = 10) -> TransactionResult:
        entry = self.driver.entry(transaction_ops.encode(op), step)
        [result] = self.driver.tablet.apply([entry])
        return transaction_ops.decode_result(result)

    def stage(
        self,
        transaction: bytes,
        op: RowOp,
        rows: Sequence[dict[str, Any]],
        columns: Sequence[str] | None = None,
        part: str = "a",
        **kw: Any,
    ) -> TransactionResult:
        """Stage one batch, the next one of the part."""
        batch = payload(self.driver.schema, op, rows, columns, **kw)
        batches = self.parts.setdefault(transaction, {}).setdefault(part, [])
        batches.append(batch)
        return self.apply(StageOp(transaction, part, len(batches) - 1, batch))

    def delete_where(self, transaction: bytes, where: str, part: str = "a") -> TransactionResult:
        """Stage a delete by condition, the next batch of the part."""
        batches = self.parts.setdefault(transaction, {}).setdefault(part, [])
        version = self.driver.schema.version
        op = StageDeleteOp(transaction, part, len(batches), version, where)
        batches.append(transaction_ops.encode(op))
        return self.apply(op)

    def upsert(self, transaction: bytes, *keys: int, a: int = 0, part: str = "a") -> None:
        rows = [{"k": k, "a": a, "s": "t"} for k in keys]
        self.stage(transaction, RowOp.UPSERT, rows, part=part)

    def counts(self, transaction: bytes, parts: Sequence[str] | None = None) -> list[PartCount]:
        found = self.parts.get(transaction, {})
        names = list(found) if parts is None else parts
        return [PartCount(n, len(found[n]), self._crc(found[n])) for n in names]

    def _crc(self, batches: Sequence[bytes]) -> int:
        return crc_of_part([crc_of_batch(b) for b in batches])

    def prepare(
        self,
        transaction: bytes,
        parts: Sequence[str] | None = None,
        attempt: tuple[int, int, int] = FIRST,
        settled: int = 0,
        counts: Sequence[PartCount] | None = None,
    ) -> TransactionResult:
        chosen = self.counts(transaction, parts) if counts is None else counts
        return self.apply(PrepareOp(transaction, attempt, tuple(chosen), settled, REFUSE_S))

    def unprepare(
        self, transaction: bytes, bound: tuple[int, int, int] = FIRST
    ) -> TransactionResult:
        return self.apply(UnprepareOp(transaction, bound))

    def drop(self, transaction: bytes, kept_until: int | None = None) -> TransactionResult:
        return self.apply(DropOp(transaction, kept_until, REFUSE_S))

    def resolve(self, transaction: bytes, at: int) -> TransactionResult:
        return self.apply(ResolveOp(transaction, at))

    def commit(self, transaction: bytes) -> int:
        """Prepare and resolve; return the commit time."""
        at = self.prepare(transaction).time + 1
        self.resolve(transaction, at)
        return at
