"""Gathering rows of several sources into new columns, with one kernel call per column.

No row is handled in Python, and no value is copied twice.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from nyala.common.schema import Column
from nyala.tablet.kernels import gather_values
from nyala.tablet.rows.rowset import Batches, Chunked, Int64s, empty_columns, older_than

_VARYING = (pa.string(), pa.binary())


def gather(
    sources: Sequence[Chunked], which: Int64s, rows: Int64s, columns: Sequence[Column]
) -> list[pa.Array]:
    """Return columns of rows from several sources.

    Args:
        sources: rowsets or batches that contain the rows.
        which: number of the source of each row.
        rows: position of each row in its source.
        columns: columns to return, one array each, in the order of `rows`.

    Raises:
        pa.ArrowCapacityError: more than 2 GiB in one string column; `gather_batches` splits them.
    """
    if not len(rows):
        return [pa.array([], c.type) for c in columns]
    if len(rows) == 1:
        return one_row(sources[int(which[0])], int(rows[0]), columns)
    chunks, numbers, local = _chunks(sources, which, rows)
    if len(chunks) == 1 and _is_run(local):
        [(source, chunk)] = chunks
        return [_run(source, chunk, c, int(local[0]), len(local)) for c in columns]
    return [_from_chunks(chunks, numbers, local, c) for c in columns]


def one_row(source: Chunked, row: int, columns: Sequence[Column]) -> list[pa.Array]:
    """As `gather`, of one row of one source.

    Args:
        source: a rowset.
        row: number of the row.
        columns: to gather.
    """
    chunk = int(source.starts.searchsorted(row, side="right")) - 1
    local = row - int(source.starts[chunk])
    if isinstance(source, Batches):
        places = [source.positions.get(c.id) for c in columns]
        if None not in places:
            found = source.batches[chunk].slice(local, 1).columns  # one call for all columns
            return [found[place] for place in places if place is not None]
    return [_run(source, chunk, column, local, 1) for column in columns]


def _run(source: Chunked, chunk: int, column: Column, begin: int, count: int) -> pa.Array:
    if source.lacks(column.id):
        return older_than(column, count)
    return source.column(chunk, column).slice(begin, count)


def _from_chunks(
    chunks: Sequence[tuple[Chunked, int]], numbers: Int64s, rows: Int64s, column: Column
) -> pa.Array:
    older = [source.lacks(column.id) for source, _ in chunks]
    if any(older):  # one row stands for all of a chunk
        rows = np.where(np.array(older)[numbers], 0, rows)
    arrays = [
        older_than(column, 1) if lacks else source.column(chunk, column)
        for (source, chunk), lacks in zip(chunks, older, strict=True)
    ]
    return collect(arrays, numbers, rows)


def _is_run(rows: Int64s) -> bool:
    """Return whether the rows are consecutive."""
    if int(rows[-1]) - int(rows[0]) != len(rows) - 1:
        return False
    return len(rows) < 3 or bool(np.all(np.diff(rows) == 1))


def _chunks(
    sources: Sequence[Chunked], which: Int64s, rows: Int64s
) -> tuple[list[tuple[Chunked, int]], Int64s, Int64s]:
    """Return the chunks that contain the rows, and for each row the number of its chunk and its position."""
    bases = np.zeros(len(sources) + 1, np.int64)
    np.cumsum([len(s.starts) - 1 for s in sources], out=bases[1:])
    starts = np.concatenate([s.starts[:-1] for s in sources])
    every = np.empty(len(rows), np.int64)
    for number in np.flatnonzero(np.bincount(which)).tolist():
        of_source = which == number
        found = sources[number].starts.searchsorted(rows[of_source], side="right")
        every[of_source] = found + (bases[number] - 1)
    touched = np.flatnonzero(np.bincount(every, minlength=len(starts)))
    number_of = np.empty(len(starts), np.int64)
    number_of[touched] = np.arange(len(touched))
    owners = bases.searchsorted(touched, side="right") - 1
    chunks = [
        (sources[owner], chunk - int(bases[owner]))
        for owner, chunk in zip(owners.tolist(), touched.tolist(), strict=True)
    ]
    return chunks, number_of[every], rows - starts[every]


def pick_all(arrays: Sequence[pa.Array], rows: Int64s) -> list[pa.Array]:
    """As `pick`, of arrays of one length."""
    if _is_run(rows):
        return [array.slice(int(rows[0]), len(rows)) for array in arrays]
    numbers = np.zeros(len(rows), np.int64)
    return [collect([array], numbers, rows) for array in arrays]


def pick(array: pa.Array, rows: Int64s) -> pa.Array:
    """Return some rows of an array, without a copy if they are consecutive."""
    if _is_run(rows):
        return array.slice(int(rows[0]), len(rows))
    return array.take(pa.array(rows))


def gather_batches(
    sources: Sequence[Chunked],
    which: Int64s,
    rows: Int64s,
    columns: Sequence[Column],
    schema: pa.Schema,
) -> list[pa.RecordBatch]:
    """As `gather`, in as few batches as possible (a string column of a batch has at most 2 GiB).

    Args:
        sources: rowsets.
        which: index into `sources` of each row.
        rows: row number in its rowset of each row.
        columns: to gather.
        schema: schema of the batches.
    """
    try:
        arrays = gather(sources, which, rows, columns)
    except (pa.ArrowInvalid, pa.ArrowCapacityError):
        if len(rows) < 2:
            raise
        half = len(rows) // 2
        return [
            *gather_batches(sources, which[:half], rows[:half], columns, schema),
            *gather_batches(sources, which[half:], rows[half:], columns, schema),
        ]
    if not columns:
        return [empty_columns(len(rows))]
    return [pa.RecordBatch.from_arrays(arrays, schema=schema)]


def collect(arrays: Sequence[pa.Array], numbers: Int64s, rows: Int64s) -> pa.Array:
    """Return the values at rows[i] of array numbers[i], for each i.

    Args:
        arrays: arrays of one type that a table can store.
        numbers: position in `arrays` of the array of each row.
        rows: position in it.

    Raises:
        pa.ArrowCapacityError: more than 2 GiB of strings.
    """
    kind, count = arrays[0].type, len(rows)
    buffers = [a.buffers() for a in arrays]
    starts = np.array([a.offset for a in arrays], np.int64)
    validity, nulls = None, 0
    if any(a.null_count for a in arrays):
        validity, zeros = _bits(_addresses(buffers, 0), starts, numbers, rows)
        nulls = zeros
    if kind in _VARYING:
        offsets, data = _strings(buffers, starts, numbers, rows)
        return pa.Array.from_buffers(kind, count, [validity, offsets, data], nulls)
    if kind == pa.bool_():
        values, _ = _bits(_addresses(buffers, 1), starts, numbers, rows)
    else:
        width = kind.bit_width // 8
        out = np.empty(count * width, np.uint8)
        gather_values.fixed(_addresses(buffers, 1) + starts * width, numbers, rows, width, out)
        values = pa.py_buffer(out)
    return pa.Array.from_buffers(kind, count, [validity, values], nulls)


def _addresses(buffers: Sequence[Sequence[pa.Buffer | None]], which: int) -> Int64s:
    chosen = [b[which] for b in buffers]
    return np.array([0 if b is None else b.address for b in chosen], np.int64)


def _bits(bitmaps: Int64s, starts: Int64s, numbers: Int64s, rows: Int64s) -> tuple[pa.Buffer, int]:
    out = np.zeros((len(rows) + 7) // 8, np.uint8)
    zeros = gather_values.bits(bitmaps, starts, numbers, rows, out)
    return pa.py_buffer(out), int(zeros)


def _strings(
    buffers: Sequence[Sequence[pa.Buffer | None]], starts: Int64s, numbers: Int64s, rows: Int64s
) -> tuple[pa.Buffer, pa.Buffer]:
    first, bytes_at = _addresses(buffers, 1) + 4 * starts, _addresses(buffers, 2)
    offsets, places = np.empty(len(rows) + 1, np.int32), np.empty(len(rows), np.int64)
    if not gather_values.lengths(first, bytes_at, numbers, rows, offsets, places):
        raise pa.ArrowCapacityError(f"{len(rows)} strings of more than 2 GiB in one array")
    data = np.empty(int(offsets[-1]), np.uint8)
    gather_values.strings(places, offsets, data)
    return pa.py_buffer(offsets), pa.py_buffer(data)
