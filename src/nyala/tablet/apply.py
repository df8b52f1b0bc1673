"""One write operation on a tablet: a pure function of (versions so far, operation). Lane APPLY.

Several operations on one key take effect in order; what is written is the final state of each key, so
that a version which would live for no time (`ins = del`) never exists and a key that appears ten
thousand times costs one version. No row is touched by Python code: kernels and Arrow see batches.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.common.ids import ColumnId
from nyala.common.keys import KeyBytes
from nyala.common.schema import Column, Schema
from nyala.tablet import kernels, ops
from nyala.tablet.checks import check, keys_of
from nyala.tablet.gathering import gather_batches, pick
from nyala.tablet.rowset import Batches, Int64s, Uint64s
from nyala.tablet.store import Located, Store, end_versions

_CODES = {
    kernels.ALREADY_PRESENT: ("already_present", "a row with this key is there already"),
    kernels.NOT_FOUND: ("not_found", "there is no row with this key"),
    kernels.NULL_KEY: ("null_key", "key column {column} is null"),
    kernels.NULL_VALUE: ("null_value", "column {column} has to have a value, and has none"),
    kernels.IMMUTABLE: ("immutable", "column {column} is immutable, and its value would change"),
    kernels.TOO_LARGE: ("too_large", "{column} is larger than allowed"),
    kernels.OUT_OF_RANGE: ("out_of_range", "the row's _op is none of 1 to 8"),
}
_MODIFIES = (ops.Op.UPSERT, ops.Op.UPSERT_IGNORE, ops.Op.UPDATE, ops.Op.UPDATE_IGNORE)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """A batch on its way in: what it gives, and its distinct keys."""

    columns: dict[ColumnId, pa.Array]
    ops: npt.NDArray[np.uint8]
    keys: KeyBytes
    hashes: Uint64s
    bad: npt.NDArray[np.uint8]
    where: npt.NDArray[np.int32]  # position in the schema of the column that `bad` means
    numbers: Int64s  # of each row's key
    first: Int64s  # row of each key


@dataclass(frozen=True, slots=True, eq=False)
class _Outcome:
    """What a batch comes to."""

    errors: npt.NDArray[np.uint8]  # per row
    where: npt.NDArray[np.int32]
    alive: npt.NDArray[np.uint8]  # per key, all below
    ended: npt.NDArray[np.bool_]
    kept: npt.NDArray[np.bool_]
    source: Int64s


def apply_write(store: Store, stamp: int, payload: bytes) -> bytes:
    """Apply one replicated write; return its encoded result.

    Args:
        store: the tablet's versions.
        stamp: the operation's hybrid time, above all before.
        payload: as `ops.encode` made it.

    Raises:
        Corrupt: the payload does not decode; nothing was changed.
    """
    write = ops.decode(payload)
    rows = _rows(store, write)
    located = store.locate(rows.keys, rows.hashes, rows.first)
    outcome = _decide(store.schema, rows, located)
    failed = int(np.count_nonzero(outcome.errors))
    if failed and write.all_or_nothing:
        return _result(0, outcome, store.schema)
    _take_effect(store, rows, located, outcome, stamp)
    return _result(len(rows.ops) - failed, outcome, store.schema)


def _rows(store: Store, write: ops.WriteOp) -> _Rows:
    columns, codes = ops.decode_batch(write, store.schema, store.retired)
    keys = keys_of(columns, store.schema)
    hashes = store.hashes(keys)
    bad, where = check(columns, codes, keys, store.schema)
    numbers, first = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
    count = kernels.group(keys.offsets, keys.data, hashes, bad, numbers, first)
    return _Rows(columns, codes, keys, hashes, bad, where, numbers, first[:count])


def _decide(schema: Schema, rows: _Rows, located: Located) -> _Outcome:
    frozen = [(n, c) for n, c in enumerate(schema.columns) if c.immutable and c.id in rows.columns]
    if frozen and not np.isin(rows.ops, _MODIFIES).any():
        frozen = []
    lacking = [
        n
        for n, c in enumerate(schema.columns)
        if c.id not in rows.columns and not c.nullable and c.default is None
    ]
    before = located.which >= 0
    alive, kept = before.astype(np.uint8), before.astype(np.uint8)
    count = len(rows.ops)
    errors, clash = np.empty(count, np.uint8), np.zeros(count, np.int32)
    ended, source = np.zeros(len(before), np.uint8), np.empty(len(before), np.int64)
    kernels.decide(
        rows.ops, rows.bad, rows.numbers, _equal_values(rows, located, [c for _, c in frozen]),
        bool(lacking), errors, clash, alive, ended, kept, source,
    )  # fmt: skip
    where = rows.where.copy()
    if lacking:
        where[(errors == kernels.NULL_VALUE) & (rows.bad == 0)] = lacking[0]
    if frozen:
        positions = np.array([n for n, _ in frozen], np.int32)
        clashes = errors == kernels.IMMUTABLE
        where[clashes] = positions[clash[clashes]]
    return _Outcome(errors, where, alive, (ended != 0) & before, (kept != 0) & before, source)


def _equal_values(rows: _Rows, located: Located, columns: list[Column]) -> npt.NDArray[np.int32]:
    """Return, per column, one number per value: of the batch's rows, then of the live version of each key."""
    count = len(rows.ops)
    out = np.zeros((len(columns), count + len(located.which)), np.int32)
    live = np.flatnonzero(located.which >= 0)
    sources = [v.chunks for v in located.views]
    for number, column in enumerate(columns):
        schema = pa.schema([pa.field("v", column.type)])
        old = gather_batches(sources, located.which[live], located.rows[live], [column], schema)
        parts = [rows.columns[column.id], *(b.column(0) for b in old)]
        if pa.types.is_floating(column.type):  # the same bits are the same value, NaN too
            bits = pa.int64() if column.type == pa.float64() else pa.int32()
            parts = [p.view(bits) for p in parts]
        encoded = pa.chunked_array(parts).dictionary_encode(null_encoding="encode")
        codes = np.concatenate([c.indices.to_numpy() for c in encoded.chunks])
        out[number, :count] = codes[:count]
        out[number, count + live] = codes[count:]
    return out


def _take_effect(
    store: Store, rows: _Rows, located: Located, outcome: _Outcome, stamp: int
) -> None:
    end_versions(located, outcome.ended, stamp)
    new = np.flatnonzero(outcome.source >= 0)
    if len(new):
        source = outcome.source[new]
        batches = _new_rows(store, rows, located, outcome, new)
        store.mem.append(
            batches,
            rows.keys.take(source),
            rows.hashes[source],
            located.newest_in_memory[new],
            stamp,
        )
    store.live += int(outcome.alive.sum()) - int(np.count_nonzero(located.which >= 0))


def _new_rows(
    store: Store, rows: _Rows, located: Located, outcome: _Outcome, new: Int64s
) -> list[pa.RecordBatch]:
    """Return all columns of the new versions of keys `new`."""
    source = outcome.source[new]
    given = {i: pick(a, source) for i, a in rows.columns.items()}
    absent = [c for c in store.schema.columns if c.id not in given]
    if absent:
        defaults = Batches.of([store.defaults], store.schema.columns)
        kept = outcome.kept[new]
        which = np.where(kept, located.which[new], len(located.views))
        at = np.where(kept, located.rows[new], 0)
        sources = [*(v.chunks for v in located.views), defaults]
        names = pa.schema([pa.field(str(c.id), c.type) for c in absent])
        parts = gather_batches(sources, which, at, absent, names)
    else:
        parts = [pa.RecordBatch.from_arrays([], names=[])]
    batches, begin = [], 0
    for part in parts:
        size = part.num_rows if absent else len(new)
        filled = dict(zip((c.id for c in absent), part.columns, strict=True))
        arrays = [
            filled[c.id] if c.id in filled else given[c.id].slice(begin, size)
            for c in store.schema.columns
        ]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=store.row_schema))
        begin += size
    return batches


def _result(rows: int, outcome: _Outcome, schema: Schema) -> bytes:
    failed = np.flatnonzero(outcome.errors)
    if not len(failed):
        return ops.encode_result(rows, ())
    combined = outcome.errors[failed].astype(np.int64) << 32 | (outcome.where[failed] + 1)
    distinct, numbers = np.unique(combined, return_inverse=True)
    kinds = []
    for value in distinct.tolist():
        column = (value & 0xFFFFFFFF) - 1
        code, message = _CODES[value >> 32]
        name = repr(schema.columns[column].name) if column >= 0 else "the key"
        kinds.append((code, message.format(column=name)))
    return ops.encode_result_arrays(rows, failed, numbers, kinds)
