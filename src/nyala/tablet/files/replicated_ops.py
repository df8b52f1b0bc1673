"""The bytes of a tablet's replicated operations and of their results.

Rules: only this module packs or unpacks them; docs/internals/formats-tablet.md shows the bytes. The
operation is replicated as the client sent it, never its effect. Little-endian throughout.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import google_crc32c
import msgspec
import numpy as np
import pyarrow as pa

from nyala.common.errors import BadChecksum, Corrupt, newer_or_damaged
from nyala.common.ids import ColumnId
from nyala.common.schema import Schema
from nyala.tablet.files import stored_schema
from nyala.tablet.files.stored_schema import StoredSchema

VERSION = 1
OP_COLUMN = "_op"
RANGE_DROPPED = "range_dropped"
"""Code of the one error of a write that a retired tablet refuses as a whole."""
MAX_OP_COLUMNS = 1000
_HEAD = struct.Struct("<BBBxIHxx")  # version, op, flags, schema version, number of column ids
_COUNT = slice(8, 10)
_ALL_OR_NOTHING = 1
_SCHEMA_KIND = 32  # where a write has its op
_SCHEMA_HEAD = struct.Struct("<BBxxI")  # version, kind, CRC32C of the rest
_RESULT = struct.Struct("<BxxxIII")  # version, rows that took effect, errors, distinct messages
_TEXT = struct.Struct("<BH")  # lengths of a code and of its message


class RowOp(IntEnum):
    """Operation on a row; the numbers are those of `WriteOp` on the wire."""

    INSERT = 1
    INSERT_IGNORE = 2
    UPSERT = 3
    UPSERT_IGNORE = 4
    UPDATE = 5
    UPDATE_IGNORE = 6
    DELETE = 7
    DELETE_IGNORE = 8
    MIXED = 15


_MIXED = RowOp.MIXED  # access to an Enum member is slow


@dataclass(frozen=True, slots=True)
class WriteOp:
    """One batch of row operations, as received from a client.

    Attributes:
        op: the operation of every row; MIXED: the batch's last column, uint8 `_op`, gives each row's.
        schema_version: version of the schema that `column_ids` come from.
        column_ids: ids of the batch's columns, in order, without `_op`; holds every key column.
        all_or_nothing: a failing row voids the whole operation.
        ipc: one encapsulated Arrow IPC RecordBatch message (metadata and body, no schema).
    """

    op: RowOp
    schema_version: int
    column_ids: tuple[ColumnId, ...]
    all_or_nothing: bool
    ipc: bytes


@dataclass(frozen=True, slots=True)
class SchemaOp:
    """The complete definition of the table from this entry on; no effect if this or a later one was applied.

    Attributes:
        schema: its version is above that of what it replaces; it may have skipped some.
        table_name: name of the table, for messages and pages.
        options: table options as text, all of them.
        ranges_version: the schema version by which the table's ranges changed last; 0: never.
        retire: the tablet's range is dropped: its rows end here, and no write takes effect any more.
    """

    schema: Schema
    table_name: str
    options: Mapping[str, str]
    ranges_version: int = 0
    retire: bool = False


class _StoredSchemaOp(msgspec.Struct, frozen=True, omit_defaults=True):
    table_name: str
    schema: StoredSchema
    options: dict[str, str]
    ranges_version: int = 0
    retire: bool = False


@dataclass(frozen=True, slots=True)
class RowError:
    """Error of one row of a batch.

    Attributes:
        row: its position in the batch.
        code: stable lower-case name.
        message: description of the error.
    """

    row: int
    code: str
    message: str


def encode(op: WriteOp) -> bytes:
    """Return the payload that is replicated."""
    head = _HEAD.pack(
        VERSION,
        op.op,
        _ALL_OR_NOTHING if op.all_or_nothing else 0,
        op.schema_version,
        len(op.column_ids),
    )
    return b"".join((head, np.asarray(op.column_ids, "<u4").tobytes(), op.ipc))


def decode(payload: bytes) -> WriteOp:
    """Return the operation of a payload; the inverse of `encode`.

    Raises:
        BadVersion: written by a newer build, or damaged.
        Corrupt: not such a payload.
    """
    if len(payload) < _HEAD.size:
        raise Corrupt(f"a write operation of {len(payload)} bytes is shorter than its header")
    body = header_bytes(payload)
    op, schema_version, ids, whole = _decode_head(payload[:body])
    return WriteOp(op, schema_version, ids, whole, payload[body:])


@lru_cache(maxsize=256)
def _decode_head(head: bytes) -> tuple[RowOp, int, tuple[ColumnId, ...], bool]:
    """Decode the header before a batch; cached, because most writes have the same one."""
    version, code, flags, schema_version, count = _HEAD.unpack_from(head)
    if version != VERSION:
        raise newer_or_damaged("a write operation", version, VERSION)
    if code not in RowOp.__members__.values() or flags > 1 or count > MAX_OP_COLUMNS:
        raise Corrupt(f"write operation with op {code}, flags {flags} and {count} columns")
    if len(head) < _HEAD.size + 4 * count:
        raise Corrupt(f"write operation of {len(head)} bytes ends within its {count} column ids")
    ids = tuple(ColumnId(int(i)) for i in np.frombuffer(head, "<u4", count, _HEAD.size))
    return RowOp(code), schema_version, ids, bool(flags)


def header_bytes(payload: bytes) -> int:
    """Return the length of the header; writes with equal headers differ in their rows only."""
    return _HEAD.size + 4 * int.from_bytes(payload[_COUNT], "little")


def is_all_or_nothing(payload: bytes) -> bool:
    """Return whether one failing row voids a write; False for other operations."""
    return payload[2:3] == bytes((_ALL_OR_NOTHING,))


def fields_of(op: WriteOp, schema: Schema, retired: Mapping[ColumnId, pa.DataType]) -> pa.Schema:
    """Return the columns of an operation's batch, with `_op` if it is mixed.

    Args:
        op: may have been written for an older schema, or a newer one that this one has skipped.
        schema: as of the operation's place in the log; columns are its, by id.
        retired: types of dropped columns, whose values are ignored.

    Raises:
        Corrupt: it names columns that the schema does not have.
    """
    kinds = {i: schema.by_id[i].type for i in op.column_ids if i in schema.by_id}
    kinds |= {i: retired[i] for i in op.column_ids if i in retired}
    unknown = [i for i in op.column_ids if i not in kinds]
    missing = [i for i in schema.key_ids if i not in op.column_ids]
    if unknown or missing or len(set(op.column_ids)) < len(op.column_ids):
        raise Corrupt(
            f"a write names columns {list(op.column_ids)}: ids {unknown} are unknown in schema version "
            f"{schema.version}, key columns {missing} are missing, or one is named twice"
        )
    fields = [pa.field(str(i), kinds[i]) for i in op.column_ids]
    if op.op is RowOp.MIXED:
        fields.append(pa.field(OP_COLUMN, pa.uint8()))
    return pa.schema(fields)


def op_codes(op: WriteOp, batch: pa.RecordBatch) -> np.ndarray:
    """Return the op code of each row of a batch (uint8; 0 where `_op` is null)."""
    if op.op is not _MIXED:
        codes = np.empty(batch.num_rows, np.uint8)
        codes.fill(op.op)
        return codes
    codes = batch.column(batch.num_columns - 1).fill_null(0).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(codes, np.uint8)


def read_batch(message: bytes | pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Read one encapsulated RecordBatch message and validate every value of it.

    Raises:
        Corrupt: the bytes are no batch of this schema.
    """
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, EOFError) as err:
        raise Corrupt(f"a batch of {len(message)} bytes does not decode: {err}") from err
    return batch


def encode_schema(op: SchemaOp) -> bytes:
    """Return the payload that is replicated."""
    options = dict(sorted(op.options.items()))
    stored = stored_schema.store(op.schema)
    kept = _StoredSchemaOp(op.table_name, stored, options, op.ranges_version, op.retire)
    body = msgspec.msgpack.encode(kept)
    return _SCHEMA_HEAD.pack(VERSION, _SCHEMA_KIND, int(google_crc32c.value(body))) + body


def is_schema(payload: bytes) -> bool:
    """Return whether a payload is a `SchemaOp`; any other one is a `WriteOp`, or damaged."""
    return len(payload) > 1 and payload[1] == _SCHEMA_KIND


def decode_schema(payload: bytes) -> SchemaOp:
    """Return the operation of a payload; the inverse of `encode_schema`.

    Raises:
        BadVersion: written by a newer build, or damaged.
        Corrupt: not such a payload, or damaged.
    """
    if len(payload) < _SCHEMA_HEAD.size or payload[1:4] != bytes((_SCHEMA_KIND, 0, 0)):
        raise Corrupt(f"{len(payload)} bytes are no schema operation")
    version, _, crc = _SCHEMA_HEAD.unpack_from(payload)
    body = payload[_SCHEMA_HEAD.size :]
    if version != VERSION:
        raise newer_or_damaged("a schema operation", version, VERSION)
    if google_crc32c.value(body) != crc:
        raise BadChecksum(f"a schema operation of {len(payload)} bytes is damaged")
    try:
        found = msgspec.msgpack.decode(body, type=_StoredSchemaOp)
    except msgspec.MsgspecError as err:
        raise Corrupt(f"a schema operation does not decode: {err}") from err
    schema = stored_schema.load(found.schema)
    return SchemaOp(schema, found.table_name, found.options, found.ranges_version, found.retire)


def encode_result(rows: int, errors: Sequence[RowError]) -> bytes:
    """Return the result of applying a batch.

    Args:
        rows: number of rows that took effect or were ignored by an `_ignore` op; 0 if all are void.
        errors: errors of the rows that failed, by row.
    """
    kinds: dict[tuple[str, str], int] = {}
    numbers = [kinds.setdefault((e.code, e.message), len(kinds)) for e in errors]
    return encode_result_arrays(
        rows,
        np.asarray([e.row for e in errors], np.uint32),
        np.asarray(numbers, np.uint32),
        list(kinds),
    )


def encode_result_arrays(
    rows: int, failed: np.ndarray, numbers: np.ndarray, kinds: Sequence[tuple[str, str]]
) -> bytes:
    """As `encode_result`, from arrays: `numbers[i]` is the (code, message) of row `failed[i]`.

    Args:
        rows: number of rows that took effect.
        failed: row numbers with an error.
        numbers: index into `kinds` of each error.
        kinds: distinct (code, message) pairs.
    """
    parts = [_RESULT.pack(VERSION, rows, len(failed), len(kinds))]
    parts += [failed.astype("<u4").tobytes(), numbers.astype("<u4").tobytes()]
    for code, message in kinds:
        texts = code.encode(), message.encode()
        parts += [_TEXT.pack(len(texts[0]), len(texts[1])), *texts]
    return b"".join(parts)


def decode_result(data: bytes) -> tuple[int, list[RowError]]:
    """Return (rows without error, errors by row); the inverse of `encode_result`.

    Raises:
        Corrupt: not such a result.
    """
    try:
        version, rows, count, kinds = _RESULT.unpack_from(data)
        if version != VERSION:
            raise newer_or_damaged("a write result", version, VERSION)
        failed = np.frombuffer(data, "<u4", count, _RESULT.size).tolist()
        numbers = np.frombuffer(data, "<u4", count, _RESULT.size + 4 * count).tolist()
        at = _RESULT.size + 8 * count
        texts: list[tuple[str, str]] = []
        for _ in range(kinds):
            code_length, message_length = _TEXT.unpack_from(data, at)
            at += _TEXT.size
            code = data[at : at + code_length].decode()
            at += code_length + message_length
            texts.append((code, data[at - message_length : at].decode()))
        if at != len(data):
            raise Corrupt(f"a write result of {len(data)} bytes should have {at}")
        return rows, [RowError(r, *texts[k]) for r, k in zip(failed, numbers, strict=True)]
    except (struct.error, ValueError, IndexError) as err:
        raise Corrupt(f"a write result of {len(data)} bytes does not decode: {err}") from err
