"""Writes on a tablet: a pure function of (versions so far, operations). Lane APPLY.

Several operations on one key take effect in order; what a write leaves is the final state of each key, so
that a version which would live for no time (`ins = del`) never exists and a key that appears ten
thousand times costs one version. No row is touched by Python code: kernels and Arrow see batches, of one
write or of a run of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.common.ids import CommittedOperation
from nyala.common.keys.encoding import KeyBytes
from nyala.common.schema import Schema
from nyala.common.types import MAX_CELL_BYTES
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.key_order import take_many
from nyala.tablet.files.replicated_ops import RowError, RowOp
from nyala.tablet.kernels import key_index, row_decisions
from nyala.tablet.rows.gathering import gather_batches, pick_all
from nyala.tablet.rows.rowset import Batches, Int64s, Uint64s
from nyala.tablet.write.op_runs import Given, Run, read, run_of
from nyala.tablet.write.row_checks import MAX_KEY_BYTES, check, keys_of
from nyala.tablet.write.store import Located, Store, WriteKind, end_versions

_CODES = {
    row_decisions.ALREADY_PRESENT: ("already_present", "a row with this key is there already"),
    row_decisions.NOT_FOUND: ("not_found", "there is no row with this key"),
    row_decisions.NULL_KEY: ("null_key", "key column {column} is null"),
    row_decisions.NULL_VALUE: ("null_value", "column {column} has to have a value, and has none"),
    row_decisions.IMMUTABLE: (
        "immutable",
        "column {column} is immutable, and its value would change",
    ),
    row_decisions.TOO_LARGE: (
        "too_large",
        f"{{column}} is larger than allowed: a key, encoded, is at most {MAX_KEY_BYTES} bytes, "
        f"a value {MAX_CELL_BYTES}",
    ),
    row_decisions.OUT_OF_RANGE: ("out_of_range", "the row's _op is none of 1 to 8"),
}
_NEEDS_ROWS, _GIVES_IMMUTABLE, _LACKS_VALUE, _WHOLE = range(100, 104)
_CODES |= {
    _NEEDS_ROWS: (
        "not_in_transaction",
        "insert and update depend on the rows that are there; in a transaction use upsert, delete, "
        "or a form that ignores",
    ),
    _GIVES_IMMUTABLE: (
        "immutable",
        "column {column} is immutable, and an upsert could change it; in a transaction use upsert_ignore",
    ),
    _LACKS_VALUE: ("null_value", "column {column} has to have a value, and a new row has none"),
    _WHOLE: (
        "not_in_transaction",
        "no row of a transaction fails at its commit; leave out all_or_nothing",
    ),
}
_IN_TRANSACTIONS = (
    RowOp.INSERT_IGNORE, RowOp.UPSERT, RowOp.UPSERT_IGNORE, RowOp.UPDATE_IGNORE,
    RowOp.DELETE, RowOp.DELETE_IGNORE,
)  # fmt: skip
_MAKES_ROWS = (RowOp.INSERT_IGNORE, RowOp.UPSERT, RowOp.UPSERT_IGNORE)


@dataclass(slots=True, eq=False)  # not frozen: creation would take four times as long
class _Rows:
    """Rows of a run of writes: their columns, and their distinct keys."""

    given: Given
    stamps: Uint64s  # of each write
    keys: KeyBytes
    hashes: Uint64s
    bad: npt.NDArray[np.uint8]
    where: npt.NDArray[np.int32]  # position in the schema of the column that `bad` means
    numbers: Int64s  # of each row's key
    first: Int64s  # row of each key


@dataclass(slots=True, eq=False)
class _Outcome:
    """Outcome of rows."""

    errors: npt.NDArray[np.uint8]  # per row
    where: npt.NDArray[np.int32]
    alive: npt.NDArray[np.uint8]  # per key
    ended: Int64s  # per key: the write that ended the version which was live before, or -1
    made: Int64s  # the new versions, as `row_decisions.decide` returns them


def apply_writes(store: Store, operations: Sequence[CommittedOperation]) -> list[bytes]:
    """Apply a run of replicated writes (`op_runs.runs`); return the encoded result of each.

    Args:
        store: the tablet's versions.
        operations: their stamps ascend, above all before.

    Raises:
        Corrupt: a payload does not decode; nothing was changed.
    """
    run = run_of(operations)
    kind = store.kind_of(run.head)
    rows = _rows(store, run, kind)
    located = store.locate(rows.keys, rows.hashes, rows.first)
    outcome = _decide(kind, rows, located)
    failed = np.count_nonzero(outcome.errors) > 0
    if failed and run.head.all_or_nothing:
        return [_result(0, outcome, slice(None), store.schema)]
    _take_effect(store, kind, rows, located, outcome)
    bounds = rows.given.bounds.tolist()
    if not failed:
        return [_all_succeeded(end - begin) for begin, end in pairwise(bounds)]
    return [
        _result(
            _count_succeeded(outcome.errors[begin:end]), outcome, slice(begin, end), store.schema
        )
        for begin, end in pairwise(bounds)
    ]


@dataclass(slots=True, eq=False)
class CheckedWrite:
    """A write that was checked as part of a transaction, and is not applied.

    Attributes:
        errors: of rows that could fail, now or later under this schema, whatever rows there are.
        whole_rows: it upserts rows with all columns, whose values do not depend on the rows that are there.
    """

    errors: tuple[RowError, ...]
    whole_rows: bool
    _kind: WriteKind
    _rows: _Rows

    def __len__(self) -> int:
        return len(self._rows.given.ops)


def check_staged(store: Store, operation: CommittedOperation) -> CheckedWrite:
    """Check a write that is staged.

    Args:
        store: the tablet's definition.
        operation: a replicated write, which is not applied.

    Raises:
        Corrupt: its payload does not decode.
    """
    run = run_of([operation])
    kind = store.kind_of(run.head)
    rows = _rows(store, run, kind)
    errors, where, ops = rows.bad, rows.where, rows.given.ops
    frozen = kind.frozen[0][0] if kind.frozen else -1
    for code, column, concerned in (
        (_WHOLE, -1, np.full(len(ops), run.head.all_or_nothing)),
        (_NEEDS_ROWS, -1, ~np.isin(ops, _IN_TRANSACTIONS)),
        (_GIVES_IMMUTABLE, frozen, (ops == RowOp.UPSERT) & (frozen >= 0)),
        (
            _LACKS_VALUE,
            next(iter(kind.lacking), -1),
            np.isin(ops, _MAKES_ROWS) & bool(kind.lacking),
        ),
    ):
        found = concerned & (errors == 0)
        errors[found], where[found] = code, column
    none = np.empty((6, 0), np.int64)
    outcome = _Outcome(errors, where, np.empty(0, np.uint8), none[0], none)
    result = _result(0, outcome, slice(None), store.schema)
    failed = tuple(replicated_ops.decode_result(result)[1])
    whole_rows = run.head.op is RowOp.UPSERT and kind.whole and not kind.frozen
    return CheckedWrite(failed, whole_rows, kind, rows)


def take_effect(store: Store, write: CheckedWrite) -> None:
    """Apply a checked write without errors to a store.

    Args:
        store: of the schema with which the write was checked; its stamps are at or below that of the write.
        write: the write.
    """
    located = store.locate(write._rows.keys, write._rows.hashes, write._rows.first)
    outcome = _decide(write._kind, write._rows, located)
    _take_effect(store, write._kind, write._rows, located, outcome)


@lru_cache(maxsize=1024)
def _all_succeeded(rows: int) -> bytes:
    return replicated_ops.encode_result(rows, ())


def _count_succeeded(errors: npt.NDArray[np.uint8]) -> int:
    return len(errors) - int(np.count_nonzero(errors))


def _rows(store: Store, run: Run, kind: WriteKind) -> _Rows:
    given = read(run, kind.fields)
    key_columns = {i: given.batch.column(kind.places[i]) for i in store.schema.key_ids}
    keys = keys_of(key_columns, store.schema)
    hashes = store.hashes(keys)
    largest = given.batch.get_total_buffer_size()
    bad, where = check(
        given.batch, kind.places, kind.values, given.ops, keys, store.schema,
        mixed=kind.mixed, largest=largest,
    )  # fmt: skip
    count = len(given.ops)
    numbers, first = np.empty(count, np.int64), np.empty(count, np.int64)
    count = key_index.group(keys.layout, keys.data, hashes, bad, numbers, first)
    return _Rows(given, run.stamps, keys, hashes, bad, where, numbers, first[:count])


def _decide(kind: WriteKind, rows: _Rows, located: Located) -> _Outcome:
    codes, frozen = rows.given.ops, kind.frozen
    alive = (located.which >= 0).view(np.uint8)
    count = len(codes)
    errors, clash = np.empty(count, np.uint8), np.zeros(count, np.int32)
    ended, made = np.empty(len(alive), np.int64), np.empty((6, count), np.int64)
    versions = row_decisions.decide(
        codes, rows.bad, rows.numbers, rows.given.writes,
        _equal_values(kind, rows, located),
        bool(kind.lacking), errors, clash, alive, ended, made,
    )  # fmt: skip
    where = rows.where
    if kind.lacking:
        where[(errors == row_decisions.NULL_VALUE) & (rows.bad == 0)] = kind.lacking[0]
    if frozen:
        positions = np.array([n for n, _ in frozen], np.int32)
        clashes = errors == row_decisions.IMMUTABLE
        where[clashes] = positions[clash[clashes]]
    return _Outcome(errors, where, alive, ended, made[:, :versions])


def _equal_values(kind: WriteKind, rows: _Rows, located: Located) -> npt.NDArray[np.int32]:
    """Return, per immutable column, one number per value: of the rows, then of each key's live version."""
    count = len(rows.given.ops)
    out = np.zeros((len(kind.frozen), count + len(located.which)), np.int32)
    if not kind.frozen or not count:
        return out
    live = np.flatnonzero(located.which >= 0)
    sources = [v.chunks for v in located.views]
    for number, (_, column) in enumerate(kind.frozen):
        schema = pa.schema([pa.field("v", column.type)])
        old = gather_batches(sources, located.which[live], located.rows[live], [column], schema)
        given = rows.given.batch.column(kind.places[column.id])
        parts = [given, *(b.column(0) for b in old)]
        if pa.types.is_floating(column.type):  # the same bits are the same value, NaN too
            bits = pa.int64() if column.type == pa.float64() else pa.int32()
            parts = [p.view(bits) for p in parts]
        encoded = pa.chunked_array(parts).dictionary_encode(null_encoding="encode")
        codes = np.concatenate([c.indices.to_numpy() for c in encoded.chunks])
        out[number, :count] = codes[:count]
        out[number, count + live] = codes[count:]
    return out


def _take_effect(
    store: Store, kind: WriteKind, rows: _Rows, located: Located, outcome: _Outcome
) -> None:
    end_versions(located, outcome.ended, rows.stamps)
    count = outcome.made.shape[1]
    if count:
        every = count == len(outcome.errors)  # then version i comes from row i
        source = outcome.made[row_decisions.SOURCE]
        store.mem.append(
            [rows.given.batch]
            if every and kind.whole
            else _new_rows(store, kind, rows, located, outcome.made),
            rows.keys if every else take_many(rows.keys, source),
            rows.hashes,
            outcome.made,
            rows.stamps,
            located.newest_in_memory,
        )
    store.live += int(np.count_nonzero(outcome.alive)) - located.live


def _new_rows(
    store: Store, kind: WriteKind, rows: _Rows, located: Located, made: Int64s
) -> list[pa.RecordBatch]:
    """Return all columns of the new versions."""
    source = made[row_decisions.SOURCE]
    columns, absent = [rows.given.batch.column(n) for n in kind.places.values()], kind.absent
    given = dict(zip(kind.places, pick_all(columns, source), strict=True))
    if not absent:
        arrays = [given[c.id] for c in store.schema.columns]
        return [pa.RecordBatch.from_arrays(arrays, schema=store.row_schema)]
    defaults = Batches.of([store.defaults], store.schema.columns)
    kept, keys = made[row_decisions.KEPT] != 0, made[row_decisions.KEY]
    which = np.where(kept, located.which[keys], len(located.views))
    at = np.where(kept, located.rows[keys], 0)
    sources = [*(v.chunks for v in located.views), defaults]
    names = pa.schema([pa.field(str(c.id), c.type) for c in absent])
    batches, begin = [], 0
    for part in gather_batches(sources, which, at, absent, names):
        filled = dict(zip((c.id for c in absent), part.columns, strict=True))
        arrays = [
            filled[c.id] if c.id in filled else given[c.id].slice(begin, part.num_rows)
            for c in store.schema.columns
        ]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=store.row_schema))
        begin += part.num_rows
    return batches


def _result(rows: int, outcome: _Outcome, part: slice, schema: Schema) -> bytes:
    errors, where = outcome.errors[part], outcome.where[part]
    failed = np.flatnonzero(errors)
    if not len(failed):
        return _all_succeeded(rows)
    combined = errors[failed].astype(np.int64) << 32 | (where[failed] + 1)
    distinct, numbers = np.unique(combined, return_inverse=True)
    kinds = []
    for value in distinct.tolist():
        column = (value & 0xFFFFFFFF) - 1
        code, message = _CODES[value >> 32]
        name = repr(schema.columns[column].name) if column >= 0 else "the key"
        kinds.append((code, message.format(column=name)))
    return replicated_ops.encode_result_arrays(rows, failed, numbers, kinds)
