"""Outcomes of transactions as the masters report them, and their errors."""

from dataclasses import dataclass

from nyala.common.errors import NyalaError, OutcomeUnknown, TransactionDenied
from nyala.wire import status
from nyala.wire.proto import transactions_pb2 as txn

SHOWN_TABLETS = 3


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that took effect.

    Attributes:
        at: commit time, a hybrid time: later scans and look-ups see all rows, earlier ones none.
        winner: id of the transaction that took effect, in hexadecimal digits.
        before: another transaction with the same key took effect before, and this one had no effect.
    """

    at: int
    winner: str
    before: bool = False


def committed(transaction: bytes, outcome: txn.TxnOutcome) -> Committed:
    """Return the commit that an outcome reports.

    Args:
        transaction: id of the transaction.
        outcome: one that is decided.

    Raises:
        TransactionDenied: it is not committed, and never will be.
        OutcomeUnknown: nothing is left that says how it ended.
    """
    match outcome.kind:
        case txn.TxnOutcome.COMMITTED:
            return Committed(outcome.at, transaction.hex())
        case txn.TxnOutcome.TAKEN:
            return Committed(outcome.at, outcome.winner.hex(), before=True)
        case txn.TxnOutcome.DENIED:
            raise denied(transaction, outcome)
    raise OutcomeUnknown(
        f"transaction {transaction.hex()} ended so long ago that the masters do not know how; read its rows "
        "back, and use a key for transactions that are committed again"
    )


def denied(transaction: bytes, outcome: txn.TxnOutcome) -> TransactionDenied:
    """Return the error of a transaction that was denied, with the reasons.

    Args:
        transaction: id of the transaction.
        outcome: DENIED.
    """
    reasons = [outcome.reason] if outcome.reason else []
    reasons += [_reason(r) for r in outcome.errors[:SHOWN_TABLETS]]
    return TransactionDenied(
        f"transaction {transaction.hex()} is not committed, and nothing of it takes effect: "
        f"{'; '.join(reasons) or 'no reason was given'}. Write its rows again in another transaction"
    )


def pending(transaction: bytes, outcome: txn.TxnOutcome | None, known: NyalaError | None) -> str:
    """Return the text about a commit that was not decided within the deadline.

    Args:
        transaction: id of the transaction.
        outcome: the last one; None: no master answered.
        known: the last error; None: there was none.
    """
    reasons = [] if known is None else [known.message]
    if outcome is not None:
        reasons += [outcome.reason] if outcome.reason else []
        reasons += [_reason(r) for r in outcome.errors[:SHOWN_TABLETS]]
    return (
        f"the commit of transaction {transaction.hex()} was not decided in time "
        f"({'; '.join(reasons) or 'no master answered'})"
    )


def _reason(result: txn.TxnTabletResult) -> str:
    if result.HasField("error"):
        return f"tablet {result.tablet_id}: {status.from_proto(result.error).message}"
    shown = "; ".join(f"{e.code}: {e.message}" for e in result.errors[:SHOWN_TABLETS])
    return f"tablet {result.tablet_id}: {shown or 'it has no stage any more'}"
