"""Runs of writes: sequences that are applied together, with their rows as one set of columns.

A run is a sequence of writes with the same header: the same kind of write, of the same columns. The kernels
process its rows together, each with the number of its write; the effect, stamps and result of each write are
the same as if it were applied alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.common.errors import Corrupt
from nyala.common.ids import CommittedOperation
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.replicated_ops import WriteOp
from nyala.tablet.kernels import ipc_messages
from nyala.tablet.rows.rowset import Int64s, Uint64s

RUN_BYTES = 64 << 20
"""Maximum bytes of a run of several writes, so that its strings fit one Arrow array."""
_VARYING = (pa.string(), pa.binary())


@dataclass(slots=True, eq=False)  # not frozen: creation would take four times as long
class Run:
    """Writes that are applied together.

    Attributes:
        head: header that they have in common; its `ipc` is that of the first.
        payloads: payload of each.
        stamps: timestamp of each, ascending.
    """

    head: WriteOp
    payloads: Sequence[bytes]
    stamps: Uint64s


@dataclass(slots=True, eq=False)
class Given:
    """The rows of a run.

    Attributes:
        batch: all of them.
        ops: op code of each row, 0 where it has none.
        writes: number of the write of each row.
        bounds: first row of each write, then the number of rows.
    """

    batch: pa.RecordBatch
    ops: npt.NDArray[np.uint8]
    writes: Int64s
    bounds: Int64s


def runs(operations: Sequence[CommittedOperation]) -> Iterator[list[CommittedOperation]]:
    """Split a sequence of writes into runs; an all-or-nothing write is a run of its own.

    Raises:
        Corrupt: a payload has no header.
    """
    at = 0
    while at < len(operations):
        first = operations[at].payload
        prefix = first[: replicated_ops.header_bytes(first)]
        end, room = at + 1, RUN_BYTES - len(first)
        if not replicated_ops.is_all_or_nothing(first):
            while end < len(operations) and operations[end].payload.startswith(prefix):
                room -= len(operations[end].payload)
                if room < 0:
                    break
                end += 1
        yield list(operations[at:end])
        at = end


def run_of(operations: Sequence[CommittedOperation]) -> Run:
    """Decode the operations of a run.

    Raises:
        Corrupt: the header is none.
    """
    stamps = np.array([o.stamp for o in operations], np.uint64)
    return Run(
        replicated_ops.decode(operations[0].payload), [o.payload for o in operations], stamps
    )


def read(run: Run, fields: pa.Schema) -> Given:
    """Return the rows of a run.

    Args:
        run: run of writes.
        fields: fields of their batches, as `replicated_ops.fields_of` gives them.

    Raises:
        Corrupt: a batch does not decode; it was checked whole before anything touched it.
    """
    if len(run.payloads) == 1:
        batch = replicated_ops.read_batch(run.head.ipc, fields)
        bounds = np.array([0, batch.num_rows], np.int64)
        writes = np.zeros(batch.num_rows, np.int64)
    else:
        batch, counts = _joined(run, fields)
        writes = np.repeat(np.arange(len(counts)), counts)
        bounds = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=bounds[1:])
    return Given(batch, replicated_ops.op_codes(run.head, batch), writes, bounds)


def _joined(run: Run, fields: pa.Schema) -> tuple[pa.RecordBatch, Int64s]:
    begin = replicated_ops.header_bytes(run.payloads[0])
    data = np.frombuffer(b"".join(run.payloads), np.uint8)
    ends = np.cumsum([len(p) for p in run.payloads])
    begins = np.concatenate(([0], ends[:-1])) + begin
    found = _Joiner(data, begins, ends, fields).batch()
    if found is not None:
        return found
    batches = [replicated_ops.read_batch(p[begin:], fields) for p in run.payloads]
    counts = np.array([b.num_rows for b in batches], np.int64)
    return pa.concat_batches(batches), counts


class _Joiner:
    """Joins the columns of many simple messages (`ipc_messages.py`)."""

    def __init__(
        self, data: npt.NDArray[np.uint8], begins: Int64s, ends: Int64s, fields: pa.Schema
    ) -> None:
        self._data = data
        self._begins = begins
        self._ends = ends
        self._fields = fields
        self._types = fields.types
        count, columns = len(begins), len(self._types)
        buffers = sum(3 if t in _VARYING else 2 for t in self._types)
        self._rows = np.empty(count, np.int64)
        self._nulls = np.empty((count, columns), np.int64)
        self._starts = np.empty((count, buffers), np.int64)
        self._sizes = np.empty((count, buffers), np.int64)

    def batch(self) -> tuple[pa.RecordBatch, Int64s] | None:
        """Return all rows, and how many each message has; None: Arrow's own reader is to decide."""
        plain = ipc_messages.layouts(
            self._data, self._begins, self._ends, len(self._types), self._starts.shape[1],
            self._rows, self._nulls, self._starts, self._sizes,
        )  # fmt: skip
        if not plain:
            return None
        total = int(self._rows.sum())
        nulls = self._nulls.sum(axis=0).tolist()
        arrays, buffer = [], 0
        for column, kind in enumerate(self._types):
            made = self._column(column, kind, buffer, total, nulls[column])
            if made is None:
                return None
            arrays.append(made)
            buffer += 3 if kind in _VARYING else 2
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._fields)
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as err:
            raise Corrupt(f"a batch among {len(self._rows)} does not decode: {err}") from err
        return batch, self._rows

    def _column(
        self, column: int, kind: pa.DataType, buffer: int, total: int, nulls: int
    ) -> pa.Array | None:
        validity = None
        if nulls:
            validity = self._bits(column, buffer, total)
            if validity is None:
                return None
        if kind in _VARYING:
            offsets = np.empty(total + 1, np.int32)
            size = ipc_messages.join_offsets(
                self._data, self._rows, self._starts, self._sizes, buffer + 1, offsets
            )
            if size < 0:
                return None
            text = np.empty(size, np.uint8)
            ipc_messages.join_strings(self._data, self._rows, self._starts, buffer + 1, text)
            parts = [validity, pa.py_buffer(offsets), pa.py_buffer(text)]
            return pa.Array.from_buffers(kind, total, parts, nulls)
        values = self._bits(-1, buffer + 1, total) if kind == pa.bool_() else None
        if kind != pa.bool_():
            width = kind.bit_width // 8
            out = np.empty(total * width, np.uint8)
            if ipc_messages.join_fixed(
                self._data, self._rows, self._starts, self._sizes, buffer + 1, width, out
            ):
                values = pa.py_buffer(out)
        if values is None:
            return None
        return pa.Array.from_buffers(kind, total, [validity, values], nulls)

    def _bits(self, column: int, buffer: int, total: int) -> pa.Buffer | None:
        out = np.zeros((total + 7) // 8, np.uint8)
        zeros = ipc_messages.join_bits(
            self._data, self._rows, self._nulls, self._starts, self._sizes, column, buffer, out
        )
        return pa.py_buffer(out) if zeros >= 0 else None
