"""Operations of transactions on a tablet: a pure function of (state so far, operation). Lane APPLY.

docs/internals/transactions.md has the rules by letter. Nothing that a client sends raises here: what cannot
be staged is refused with a result. Batches take effect at the commit time, in the order of the parts, each as
a write; a delete of an absent row does nothing. A batch is a replicated write, or the payload of a staged
delete by condition.

Whole rows that are staged in large batches are built as rowsets at once (`built_rows.py`), so that RESOLVE
only adds these.

An operation on a large stage is applied in pieces: its generator yields between them, so that other tablets
have their turn in the lane. Nothing but this operation is applied to this tablet meanwhile.
"""

from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

from nyala.common.errors import BadVersion, Corrupt
from nyala.common.hybrid_time import from_micros
from nyala.common.ids import CommittedOperation
from nyala.tablet.files.replicated_ops import RANGE_DROPPED, RowError
from nyala.tablet.files.stored_stages import StageFiles
from nyala.tablet.files.transaction_ops import (
    DropOp,
    KeepOp,
    PrepareOp,
    ResolveOp,
    StageDeleteOp,
    StageOp,
    TransactionOutcome,
    TransactionResult,
    UnprepareOp,
    crc_of_batch,
    decode,
    encode_result,
    is_transaction,
)
from nyala.tablet.write.apply import CheckedWrite, apply_writes, check_staged
from nyala.tablet.write.apply_conditions import condition_errors, delete_matching
from nyala.tablet.write.built_rows import BuiltRows, add, build, chosen
from nyala.tablet.write.stage import Prepared, Stage, StagedBatch
from nyala.tablet.write.stages import MAX_BATCHES, MAX_DROPPED, MAX_STAGES
from nyala.tablet.write.store import Store

FIRST_BYTES = 32 << 10
"""Maximum bytes of the batches of the first piece: an operation may begin on the event loop."""
PIECE_BYTES = 1 << 20
"""Maximum bytes of the batches of each other piece, one batch at least."""
Steps = Generator[None, None, TransactionResult]
_Rows = TypeVar("_Rows", StagedBatch, StagedBatch | BuiltRows)

_RETIRED = RowError(0, RANGE_DROPPED, "the tablet's range was dropped")
_OTHER_PARTS = RowError(
    0,
    "other_parts",
    "the transaction is prepared with other parts: a transaction has one committer; the attempt with the "
    "first parts has to end before others can be prepared",
)
_OTHER_BATCH = RowError(
    0, "other_batch", "another batch has this number in the part; use one part for each attempt"
)


def apply_transaction(
    store: Store, operation: CommittedOperation, files: StageFiles
) -> Generator[None, None, bytes]:
    """Apply one operation of a transaction, in pieces; return its encoded result.

    Args:
        store: the tablet's versions and stages.
        operation: a committed operation.
        files: files of staged batches.

    Raises:
        Corrupt: the payload does not decode, or a file is damaged; nothing was changed.
    """
    return encode_result((yield from _apply(store, operation, files)))


def _apply(store: Store, operation: CommittedOperation, files: StageFiles) -> Steps:
    op, stamp = decode(operation.payload), operation.stamp
    match op:
        case StageOp():
            return _stage(store, operation, op, op.batch)
        case StageDeleteOp():
            return _stage(store, operation, op, operation.payload)
        case KeepOp():
            return _keep(store, op, stamp)
        case DropOp():
            return _drop(store, op, stamp)
        case PrepareOp():
            return (yield from _prepare(store, op, operation, files))
        case UnprepareOp():
            return _unprepare(store, op, stamp)
        case ResolveOp():
            return (yield from _resolve(store, op, operation, files))


def _pieces(batches: Iterable[_Rows]) -> Iterator[list[_Rows]]:
    """Return batches in pieces; the first one may be empty, and built rows are a piece of their own."""
    piece, room = list[_Rows](), FIRST_BYTES
    for batch in batches:
        size = PIECE_BYTES if isinstance(batch, BuiltRows) else batch.size_bytes
        if size > room:
            yield piece
            piece, room = [], PIECE_BYTES
        piece.append(batch)
        room -= size
    yield piece


def _over(store: Store, transaction: bytes, stamp: int) -> TransactionResult | None:
    """Return the result for a transaction that has ended here; None: it has not."""
    known = store.stages
    if transaction in known.ended:
        return TransactionResult(TransactionOutcome.ENDED, known.ended[transaction])
    if transaction not in known.stages and known.dropped.get(transaction, 0) >= stamp:
        return TransactionResult(TransactionOutcome.GONE, stamp)
    return None


def _stage(
    store: Store, operation: CommittedOperation, op: StageOp | StageDeleteOp, batch: bytes
) -> TransactionResult:
    known, stamp = store.stages, operation.stamp
    over = _over(store, op.transaction, stamp)
    if over is not None:
        return over
    stage = known.stages.get(op.transaction)
    if stage is not None and stage.prepared is not None:
        return TransactionResult(TransactionOutcome.PREPARED, stage.prepared.at)
    there = None if stage is None else stage.parts.get(op.part, {}).get(op.number)
    if stage is not None and there is not None:
        if there.crc != crc_of_batch(batch):
            return TransactionResult(TransactionOutcome.REFUSED, stamp, (_OTHER_BATCH,))
        stage.kept = stamp
        return TransactionResult(TransactionOutcome.DONE, stamp)
    if stage is not None and stage.count >= MAX_BATCHES:
        text = f"a transaction has at most {MAX_BATCHES} batches in a tablet; use larger ones"
        return _refused(stamp, "too_many_batches", text)
    errors, write = _check(store, operation, batch)
    if errors:
        return TransactionResult(TransactionOutcome.REFUSED, stamp, errors)
    stage = known.begin(op.transaction, stamp)
    if stage is None:
        text = f"the tablet has {MAX_STAGES} staged transactions already; end some of them"
        return _refused(stamp, "too_many_transactions", text)
    stage.kept = stamp
    known.add(stage, op.part, op.number, batch, store.schema.version)
    if write is not None:
        built = stage.built.setdefault(op.part, [])
        known.built_bytes += build(store, built, op.number, write)
    return TransactionResult(TransactionOutcome.DONE, stamp)


def _refused(stamp: int, code: str, text: str) -> TransactionResult:
    return TransactionResult(TransactionOutcome.REFUSED, stamp, (RowError(0, code, text),))


def _check(
    store: Store, operation: CommittedOperation, batch: bytes
) -> tuple[tuple[RowError, ...], CheckedWrite | None]:
    """Return why a batch cannot be staged: errors of rows that could fail, or of the whole; and the write."""
    if store.info.retired_at:
        return (_RETIRED,), None
    try:
        if is_transaction(batch):
            return condition_errors(store.schema, _condition(batch)), None
        write = check_staged(store, CommittedOperation(operation.id, operation.stamp, batch))
        return write.errors, write
    except BadVersion:
        raise  # a newer build can apply it
    except Corrupt as err:
        return (RowError(0, "malformed", err.message),), None


def _keep(store: Store, op: KeepOp, stamp: int) -> TransactionResult:
    stage = store.stages.stages.get(op.transaction)
    if stage is None:
        return _over(store, op.transaction, stamp) or TransactionResult(
            TransactionOutcome.UNKNOWN, stamp
        )
    stage.kept = stamp
    return TransactionResult(TransactionOutcome.DONE, stamp)


def _until(stamp: int, seconds: int) -> int:
    return stamp + from_micros(seconds * 1_000_000)


def _drop(store: Store, op: DropOp, stamp: int) -> TransactionResult:
    known = store.stages
    over = _over(store, op.transaction, stamp)
    if over is not None:
        return over
    stage = known.stages.get(op.transaction)
    if stage is not None and stage.prepared is not None:
        return TransactionResult(TransactionOutcome.PREPARED, stage.prepared.at)
    if op.kept_until is not None and (stage is None or stage.kept > op.kept_until):
        return TransactionResult(TransactionOutcome.UNKNOWN, stamp)
    if stage is None and len(known.dropped) >= MAX_DROPPED:
        text = f"the tablet remembers {MAX_DROPPED} dropped transactions already; ask again later"
        return _refused(stamp, "too_many_transactions", text)
    known.forget(op.transaction, stamp, _until(stamp, op.refuse_s))
    return TransactionResult(TransactionOutcome.GONE, stamp)


def _prepare(
    store: Store, op: PrepareOp, operation: CommittedOperation, files: StageFiles
) -> Steps:
    known, stamp = store.stages, operation.stamp
    known.settle(op.settled)
    over = _over(store, op.transaction, stamp)
    if over is not None:
        return over
    stage = known.stages.get(op.transaction)
    if stage is not None and op.attempt < stage.attempt:
        return TransactionResult(TransactionOutcome.OLDER, stamp)
    parts = tuple(c.part for c in op.parts)
    if stage is not None and stage.prepared is not None:
        if parts != stage.prepared.parts or not stage.has(op.parts):
            return TransactionResult(TransactionOutcome.REFUSED, stamp, (_OTHER_PARTS,))
        stage.attempt = stage.prepared.attempt = op.attempt
        known.note_prepared()
        return TransactionResult(TransactionOutcome.DONE, stage.prepared.at)
    errors = yield from _obstacles(store, stage, op, operation, files)
    if stage is None or errors:
        known.forget(op.transaction, stamp, _until(stamp, op.refuse_s))
        return TransactionResult(TransactionOutcome.GONE, stamp, errors)
    known.drop_parts(stage, parts)
    for batch in stage.all_batches:
        batch.checked = store.schema.version
    stage.attempt = op.attempt
    stage.prepared = Prepared(stamp, op.attempt, parts)
    known.note_prepared()
    return TransactionResult(TransactionOutcome.DONE, stamp)


def _obstacles(
    store: Store,
    stage: Stage | None,
    op: PrepareOp,
    operation: CommittedOperation,
    files: StageFiles,
) -> Generator[None, None, tuple[RowError, ...]]:
    """Return why a stage cannot be prepared."""
    if store.info.retired_at:
        return (_RETIRED,)
    if stage is None or not stage.has(op.parts):
        return (RowError(0, "not_whole", "the tablet does not have every batch of the parts"),)
    batches = stage.batches(tuple(c.part for c in op.parts))
    for number, piece in enumerate(
        _pieces(b for b in batches if b.checked != store.schema.version)
    ):
        if number:
            yield
        for batch in piece:
            errors, _ = _check(store, operation, batch.read(files))
            if errors:
                return errors
    return ()


def _unprepare(store: Store, op: UnprepareOp, stamp: int) -> TransactionResult:
    stage = store.stages.stages.get(op.transaction)
    if stage is None:
        return _over(store, op.transaction, stamp) or TransactionResult(
            TransactionOutcome.UNKNOWN, stamp
        )
    stage.attempt = max(stage.attempt, op.bound)
    stage.kept = stamp
    if stage.prepared is not None and stage.prepared.attempt > op.bound:
        return TransactionResult(TransactionOutcome.PREPARED, stage.prepared.at)
    stage.prepared = None
    store.stages.note_prepared()
    return TransactionResult(TransactionOutcome.DONE, stamp)


def _resolve(
    store: Store, op: ResolveOp, operation: CommittedOperation, files: StageFiles
) -> Steps:
    known, stamp = store.stages, operation.stamp
    if op.transaction in known.ended:
        return TransactionResult(TransactionOutcome.ENDED, known.ended[op.transaction])
    stage = known.stages.get(op.transaction)
    if stage is None or stage.prepared is None:
        return TransactionResult(TransactionOutcome.UNKNOWN, stamp)
    if not max(stage.prepared.at, known.written) < op.at < stamp:
        text = (
            f"commit time {op.at} has to be above the prepare time {stage.prepared.at} and the last version "
            f"at {known.written}, and below the entry's {stamp}; the tablet stays prepared"
        )
        return _refused(stamp, "out_of_order", text)
    batches = stage.batches(stage.prepared.parts)
    if store.info.retired_at or any(b.checked != store.schema.version for b in batches):
        text = "the schema was changed after the prepare; the tablet stays prepared"
        return _refused(stamp, "schema_changed", text)
    rows = _in_order(store, stage, stage.prepared.parts)
    loose = (r for r in rows if isinstance(r, StagedBatch))
    for number, piece in enumerate(_pieces(loose)):  # damage is found before anything changes
        if number:
            yield
        for batch in piece:
            batch.read(files)
    for number, part in enumerate(_pieces(rows)):
        if number:
            yield
        for found in part:
            if isinstance(found, BuiltRows):
                add(store, found, op.at)
                continue
            payload = found.read(files)
            if is_transaction(payload):
                yield  # a condition is evaluated over the whole tablet: not in the piece of the event loop
            _take_effect(store, CommittedOperation(operation.id, op.at, payload))
    known.end(op.transaction, op.at)
    return TransactionResult(TransactionOutcome.ENDED, op.at)


def _in_order(store: Store, stage: Stage, parts: tuple[str, ...]) -> list[StagedBatch | BuiltRows]:
    """Return what a commit adds, in the order in which it takes effect: batches, or rows built from some."""
    built = chosen(store, [stage.built.get(part, []) for part in parts])
    found: list[StagedBatch | BuiltRows] = []
    for place, part in enumerate(parts):
        skipped = 0
        for number, batch in sorted(stage.parts[part].items()):
            rows = built.get((place, number))
            if rows is not None:
                found.append(rows)
                skipped = rows.batches
            if skipped:
                skipped -= 1
            else:
                found.append(batch)
    return found


def _take_effect(store: Store, batch: CommittedOperation) -> None:
    """Apply a staged batch at the commit time, which is its stamp."""
    if is_transaction(batch.payload):
        delete_matching(store, _condition(batch.payload).where, batch.stamp)
    else:
        apply_writes(store, [batch])


def _condition(batch: bytes) -> StageDeleteOp:
    """Return the staged delete by condition of a batch.

    Raises:
        Corrupt: it is none.
    """
    op = decode(batch)
    if not isinstance(op, StageDeleteOp):
        raise Corrupt(f"a staged batch of {len(batch)} bytes is a {type(op).__name__}")
    return op
