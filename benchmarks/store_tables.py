"""The tables of `./run bench store`: rows as a pure function of (key, salt), and a tablet that holds them.

The values are those of the reference workload measured with Kudu, so that bytes on disk are
comparable: mixed bits in 7, 6, 5 and 4 of 8 bytes, a double that grows with the key and one of 24
random bits, and strings of 16 random hexadecimal digits and four fixed letters.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nyala.common.ids import CommittedOperation, OpId, TableId, TabletId
from nyala.common.schema import Schema, from_arrow
from nyala.env.files import SystemFiles
from nyala.storage.flush_point import StoredFlushPoint
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.manifest import TabletInfo
from nyala.tablet.files.replicated_ops import RowOp, WriteOp
from nyala.tablet.tablet import Tablet

Keys = np.ndarray
MADE = 500_000
"""Rows whose operations are encoded at once."""
FLUSH_BYTES = 64 << 20
"""Bytes of memory before a flush, as the servers' option `flush_bytes`."""
_VALUES = [
    *(pa.field(f"i{n}", pa.int64()) for n in range(1, 5)),
    *(pa.field(f"d{n}", pa.float64()) for n in (1, 2)),
    *(pa.field(f"s{n}", pa.string()) for n in (1, 2)),
]
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_SHIFTS = np.arange(16, dtype=np.uint64) * np.uint64(4)


def mix(keys: Keys) -> np.ndarray:
    """Return 64 well-mixed bits of each number."""
    z = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def _texts(letters: np.ndarray) -> pa.Array:
    count, width = letters.shape
    offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * np.int32(width))
    return pa.StringArray.from_buffers(count, offsets, pa.py_buffer(np.ascontiguousarray(letters)))


def _hexed(numbers: np.ndarray) -> pa.Array:
    letters = np.empty((len(numbers), 20), np.uint8)
    letters[:, :16] = _HEX[((mix(numbers)[:, None] >> _SHIFTS) & np.uint64(15)).astype(np.intp)]
    letters[:, 16:] = np.frombuffer(b"wide", np.uint8)
    return _texts(letters)


def _decimal(prefix: bytes, numbers: Keys, digits: int) -> pa.Array:
    letters = np.empty((len(numbers), len(prefix) + digits), np.uint8)
    letters[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    powers = 10 ** np.arange(digits - 1, -1, -1)
    letters[:, len(prefix) :] = numbers[:, None] // powers % 10 + ord("0")
    return _texts(letters)


@dataclass(frozen=True)
class Kind:
    """One of the two tables.

    Attributes:
        name: name in the report.
        fields: names and Arrow types of all columns.
        schema: schema of the tablet.
        strings: whether the key is two strings; otherwise one int64.
    """

    name: str
    fields: pa.Schema
    schema: Schema
    strings: bool

    def rows(self, keys: Keys, salt: int = 0) -> pa.RecordBatch:
        """Return the rows of these keys."""
        unsigned = keys.astype(np.uint64)
        add = np.uint64(salt)
        ints = [
            pa.array((mix(unsigned + np.uint64(n) + add) >> np.uint64(8 * n)).view(np.int64))
            for n in range(1, 5)
        ]
        doubles = [
            pa.array(keys * 0.5 + salt),
            pa.array((mix(unsigned) >> np.uint64(40)).astype(np.float64)),
        ]
        texts = [_hexed(unsigned + add), _hexed(~unsigned + add)]
        arrays = [*self.key_arrays(keys), *ints, *doubles, *texts]
        return pa.RecordBatch.from_arrays(arrays, schema=self.fields)

    def key_arrays(self, keys: Keys) -> list[pa.Array]:
        """Return the key columns only; they sort as the numbers do."""
        if not self.strings:
            return [pa.array(keys.astype(np.int64))]
        return [_decimal(b"host", keys // 1000, 8), _decimal(b"metric", keys % 1000, 4)]


def _kind(name: str, strings: bool, keys: list[pa.Field]) -> Kind:
    fields = pa.schema([*keys, *_VALUES])
    return Kind(name, fields, from_arrow(fields, [k.name for k in keys]), strings)


INT_KEY = _kind("int64 key", False, [pa.field("key", pa.int64(), nullable=False)])
STRING_KEYS = _kind(
    "two string keys",
    True,
    [
        pa.field("host", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
    ],
)


@dataclass(frozen=True)
class Taken:
    """Duration of some work in seconds.

    Attributes:
        seconds: elapsed time.
        cpu: CPU time of this process.
        flushing: part of `seconds` spent in flushes.
    """

    seconds: float
    cpu: float
    flushing: float

    def more(self, began: float, cpu: float, flushing: float) -> "Taken":
        """Return the sum with work that began at these readings of the two clocks."""
        return Taken(
            self.seconds + time.perf_counter() - began,
            self.cpu + time.process_time() - cpu,
            self.flushing + flushing,
        )


class Store:
    """A tablet under test; its own work is timed, the encoding of operations is not.

    Attributes:
        tablet: the tablet.
        files: the real file system.
        directory: path of the tablet.
        now: timestamp of the last operation.
        merging: seconds spent in compactions of the policy.
    """

    def __init__(self, kind: Kind, directory: str, **options: str) -> None:
        self.kind = kind
        self.directory = directory
        self.files = SystemFiles()
        info = TabletInfo(
            TabletId("ab" * 16), TableId("cd" * 16), "t", kind.schema, options=options
        )
        self.tablet = Tablet.create(self.files, directory, info)
        self.now = 0
        self.merging = 0.0

    def operations(
        self,
        op: RowOp,
        keys: Keys,
        batch: int,
        *,
        salt: int = 0,
        columns: int | None = None,
    ) -> Iterator[CommittedOperation]:
        """Yield operations of `batch` rows each, of the first `columns` columns (None: all)."""
        whole = self.kind.rows(keys, salt)
        if columns is not None:
            whole = whole.select(range(columns))
        ids = tuple(c.id for c in self.kind.schema.columns)[: whole.num_columns]
        for at in range(0, len(keys), batch):
            message = whole.slice(at, batch).serialize().to_pybytes()
            self.now += 1
            payload = replicated_ops.encode(
                WriteOp(op, self.kind.schema.version, ids, False, message)
            )
            yield CommittedOperation(OpId(1, self.now), self.now, payload)

    def write(
        self,
        op: RowOp,
        keys: Keys,
        batch: int,
        *,
        salt: int = 0,
        columns: int | None = None,
        flush: bool = True,
    ) -> Taken:
        """Apply keys in batches; flush as a server does, and at the end if `flush`. Compactions are apart."""
        began, cpu, flushing = 0.0, 0.0, 0.0
        taken = Taken(0, 0, 0)
        for begin in range(0, len(keys), MADE):
            part = keys[begin : begin + MADE]
            for operation in list(
                self.operations(op, part, batch, salt=salt + begin, columns=columns)
            ):
                began, cpu = time.perf_counter(), time.process_time()
                self.tablet.apply([operation])
                full = self.tablet.unflushed_bytes() >= FLUSH_BYTES
                flushing = self.flush(operation.stamp) if full else 0.0
                taken = taken.more(began, cpu, flushing)
                if full:  # in a server another thread compacts, so its time is counted separately
                    self.merging += self.compact(force=False)
        if flush:
            began, cpu = time.perf_counter(), time.process_time()
            taken = taken.more(began, cpu, self.flush(self.now))
        return taken

    def flush(self, stamp: int) -> float:
        """Flush the memory; return the seconds."""
        began = time.perf_counter()
        build = self.tablet.prepare_flush(StoredFlushPoint(OpId(1, stamp), stamp))
        if build is not None:
            build()()
        return time.perf_counter() - began

    def compact(self, *, force: bool, horizon: int | None = None) -> float:
        """Compact while the policy (or `force`) finds rowsets to merge; return the seconds."""
        began = time.perf_counter()
        while (build := self.tablet.prepare_compaction(horizon, force=force)) is not None:
            build()()
        return time.perf_counter() - began

    def bytes_on_disk(self) -> int:
        """Return the bytes of the tablet's files."""
        return sum(
            self.files.size(f"{self.directory}/{n}") for n in self.files.list(self.directory)
        )
