"""The bytes of the operations of transactions in a tablet's log, and of their results.

Rules: only this module packs or unpacks them; docs/internals/formats-tablet.md shows the bytes, and
docs/internals/transactions.md what they mean. Their version byte is 2, which a release without transactions
refuses: its replicas stop and keep their data. `encode` checks every limit, so that nothing is replicated
which the replicas could not decode.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

import google_crc32c
import msgspec

from nyala.common.errors import BadChecksum, Corrupt, InvalidArgument, newer_or_damaged
from nyala.common.expressions.where_tokens import MAX_TEXT_BYTES
from nyala.common.hybrid_time import MAX_HYBRID_TIME
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.replicated_ops import RowError

VERSION = 2
MAX_PART_LENGTH = 128
"""Maximum number of characters of the name of a part."""
MAX_PARTS = 65_536
"""Maximum number of parts that a PREPARE names."""
MAX_NUMBER = (1 << 31) - 1
MAX_REFUSE_S = 31_622_400
"""Maximum time for which a transaction that has ended is refused: 366 days."""
BUSY = "busy"
"""Code of the error of a PREPARE that a leader refuses without an entry, as other requests go first."""
_HEAD = struct.Struct("<BB2xI")  # version, kind, CRC32C of the rest
_RESULT = struct.Struct("<BB6xQ")  # version, outcome, time; then the errors as of a write

TransactionId = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
PartName = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PART_LENGTH)]
Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)]
Crc = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
Time = Annotated[int, msgspec.Meta(ge=0, le=MAX_HYBRID_TIME)]
Seconds = Annotated[int, msgspec.Meta(ge=0, le=MAX_REFUSE_S)]
Counter = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Where = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT_BYTES)]
Attempt = tuple[Counter, Counter, Counter]
"""Incarnation of the catalog, term of the coordinator, number of the attempt; attempts are ordered so."""


class PartCount(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One part that counts.

    Attributes:
        part: name of the part.
        batches: how many batches it has in this tablet.
        crc: `crc_of_part` of them.
    """

    part: PartName
    batches: Number
    crc: Crc


class StageOp(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Adds a batch to the stage of a transaction.

    Attributes:
        transaction: id, drawn at random by the client.
        part: name of the part that the batch belongs to.
        number: order of the batch in its part.
        batch: the write, as `replicated_ops.encode` returns it.
    """

    transaction: TransactionId
    part: PartName
    number: Number
    batch: bytes


class KeepOp(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Lets the time of a stage begin anew."""

    transaction: TransactionId


class DropOp(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Removes a stage, and refuses further ones of the transaction.

    Attributes:
        transaction: need not be known.
        kept_until: only a stage that was kept last at or below this time is dropped; None: any.
        refuse_s: how long the transaction is refused afterwards, by the stamps of entries.
    """

    transaction: TransactionId
    kept_until: Time | None
    refuse_s: Seconds


class PrepareOp(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Fixes a stage; the entry's stamp is the tablet's prepare time.

    Attributes:
        transaction: its id.
        attempt: attempt of the coordinator.
        parts: parts that count, in the order in which they take effect.
        settled: no decision has a commit time at or below it, or will.
        refuse_s: as of `DropOp`, if the stage is not whole.
    """

    transaction: TransactionId
    attempt: Attempt
    parts: Annotated[tuple[PartCount, ...], msgspec.Meta(max_length=MAX_PARTS)]
    settled: Time
    refuse_s: Seconds


class UnprepareOp(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Undoes what attempts at or below a bound have prepared; the stage stays.

    Attributes:
        transaction: its id.
        bound: greatest attempt that is undone.
    """

    transaction: TransactionId
    bound: Attempt


class ResolveOp(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Applies a prepared stage.

    Attributes:
        transaction: its id.
        at: commit time; above the prepare time, and below the entry's stamp.
    """

    transaction: TransactionId
    at: Time


class StageDeleteOp(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Adds a delete by condition to the stage of a transaction; the whole payload is the batch.

    Attributes:
        transaction: as of `StageOp`.
        part: as of `StageOp`.
        number: as of `StageOp`.
        schema_version: version of the schema for which the condition was written, and the only one.
        where: the condition, in the language of `common/expressions/where.py`.
    """

    transaction: TransactionId
    part: PartName
    number: Number
    schema_version: Number
    where: Where


TransactionOp = StageOp | KeepOp | DropOp | PrepareOp | UnprepareOp | ResolveOp | StageDeleteOp
_KINDS: dict[int, type[TransactionOp]] = {
    33: StageOp, 34: KeepOp, 35: DropOp, 36: PrepareOp, 37: UnprepareOp, 38: ResolveOp, 39: StageDeleteOp,
}  # fmt: skip
_NUMBERS = {kind: number for number, kind in _KINDS.items()}


class TransactionOutcome(IntEnum):
    """TransactionOutcome of an operation of a transaction.

    DONE: it took effect, now or before. PREPARED: the stage is fixed, and was not changed. GONE: there is no
    stage, and will be none for the time that was ordered. UNKNOWN: the tablet does not know the transaction.
    ENDED: its stage was applied. OLDER: a later attempt is known. REFUSED: nothing was changed; the errors
    say why.
    """

    DONE = 1
    PREPARED = 2
    GONE = 3
    UNKNOWN = 4
    ENDED = 5
    OLDER = 6
    REFUSED = 7


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Result of an operation of a transaction.

    Attributes:
        outcome: what happened.
        time: of a PREPARE that is DONE its prepare time, of ENDED the commit time, else the entry's stamp.
        errors: reasons of REFUSED, and of GONE after a PREPARE; of a batch, its rows' errors.
    """

    outcome: TransactionOutcome
    time: int
    errors: tuple[RowError, ...] = ()


def encode(op: TransactionOp) -> bytes:
    """Return the payload that is replicated.

    Raises:
        InvalidArgument: a value is outside its limits.
    """
    kind = type(op)
    checked = msgspec.structs.replace(op, batch=b"") if isinstance(op, StageOp) else op
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(checked), type=kind)
        body = msgspec.msgpack.encode(op)
    except (msgspec.MsgspecError, OverflowError, TypeError, UnicodeError) as err:
        raise InvalidArgument(f"a {kind.__name__} that no tablet can apply: {err}") from err
    return _HEAD.pack(VERSION, _NUMBERS[kind], int(google_crc32c.value(body))) + body


def is_transaction(payload: bytes) -> bool:
    """Return whether a payload is an operation of a transaction, or damaged."""
    return payload[:1] == b"\x02"


def decode(payload: bytes) -> TransactionOp:
    """Return the operation of a payload; the inverse of `encode`.

    Raises:
        BadVersion: written by a newer build, or damaged.
        Corrupt: not such a payload, or damaged.
    """
    if len(payload) < _HEAD.size or payload[2:4] != b"\0\0":
        raise Corrupt(f"{len(payload)} bytes are no operation of a transaction")
    version, number, crc = _HEAD.unpack_from(payload)
    kind = _KINDS.get(number)
    if version != VERSION or kind is None:
        known = f"{min(_KINDS)} to {max(_KINDS)}"
        what = f"operation {number} of a transaction, of which this build knows {known},"
        raise newer_or_damaged(what, version, VERSION)
    body = payload[_HEAD.size :]
    if google_crc32c.value(body) != crc:
        raise BadChecksum(f"an operation of a transaction, {len(payload)} bytes, is damaged")
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.MsgspecError as err:
        raise Corrupt(f"an operation of a transaction does not decode: {err}") from err


def crc_of_batch(batch: bytes) -> int:
    """Return the checksum of one staged batch."""
    return int(google_crc32c.value(batch))


def crc_of_part(crcs: list[int]) -> int:
    """Return the checksum of a part from those of its batches, in the order of their numbers."""
    return int(google_crc32c.value(struct.pack(f"<{len(crcs)}I", *crcs)))


def encode_result(result: TransactionResult) -> bytes:
    """Return the bytes of a result."""
    head = _RESULT.pack(VERSION, result.outcome, result.time)
    return head + replicated_ops.encode_result(0, result.errors)


def decode_result(data: bytes) -> TransactionResult:
    """Return the result of its bytes; the inverse of `encode_result`.

    Raises:
        Corrupt: not such a result. BadVersion: written by a newer build, or damaged.
    """
    if len(data) < _RESULT.size:
        raise Corrupt(f"{len(data)} bytes are no result of a transaction's operation")
    version, outcome, time = _RESULT.unpack_from(data)
    if version != VERSION or outcome not in TransactionOutcome.__members__.values():
        known = f"up to {max(TransactionOutcome)}"
        what = f"result {outcome} of a transaction, of which this build knows {known},"
        raise newer_or_damaged(what, version, VERSION)
    errors = replicated_ops.decode_result(data[_RESULT.size :])[1]
    return TransactionResult(TransactionOutcome(outcome), time, tuple(errors))
