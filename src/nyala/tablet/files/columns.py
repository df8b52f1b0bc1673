"""Column blocks as Arrow IPC messages: the layout of values in a data file.

Each block of rows has one section per column, an encapsulated RecordBatch message of that column; docs/
internals/formats-tablet.md shows the bytes. Uncompressed blocks are used where they are mapped.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.errors import Corrupt, InvalidArgument
from nyala.common.ids import ColumnId
from nyala.common.schema import Column
from nyala.common.types import arrow_type, type_name
from nyala.env.files import Files
from nyala.storage.sections import Sections, SectionWriter
from nyala.tablet.files.column_stats import RunningStats, is_varying
from nyala.tablet.files.file_kind import FileKind
from nyala.tablet.files.replicated_ops import read_batch
from nyala.tablet.rows.rowset import ColumnStats, Int64s, older_than

BLOCK_ROWS = 131_072
BLOCK_BYTES = 16 << 20
"""Maximum rows of a block, and maximum bytes of the strings and binaries of its rows."""
COMPRESSED_ROWS = 4096
"""Maximum rows of a compressed block, which is decoded as a whole for each row that is read."""
WORTHWHILE = 0.9
"""Compressed fraction above which a block is stored uncompressed, and read in place."""
COMPRESSIONS = ("none", "lz4", "zstd")
_META, _STATS, _BLOCKS = 1, 2, 16


class _Meta(msgspec.Struct, frozen=True):
    column_ids: list[int]
    types: list[str]
    starts: list[int]
    compression: str
    stats_ids: list[int]
    null_ids: list[int]


def compression_of(options: Mapping[str, str]) -> str:
    """Return the compression that a table's options ask for.

    Raises:
        InvalidArgument: there is no such compression.
    """
    chosen = options.get("compression", "none")
    if chosen not in COMPRESSIONS:
        raise InvalidArgument(
            f"table option compression={chosen!r} is unknown; choose one of {', '.join(COMPRESSIONS)}"
        )
    return chosen


class ColumnWriter:
    """Writes the data file of one rowset, block by block.

    Args:
        writer: writer of the file.
        columns: all columns, in the order of each block.
        compression: one of `COMPRESSIONS`.
    """

    def __init__(self, writer: SectionWriter, columns: Sequence[Column], compression: str) -> None:
        self._writer = writer
        self._columns = columns
        self._compression = compression
        self._starts = [0]
        self._stats = [RunningStats(c) for c in columns]

    def add(self, arrays: Sequence[pa.Array]) -> None:
        """Write the next rows, one array per column: one block, or several if they are compressed."""
        rows = len(arrays[0])
        step = rows if self._compression == "none" else COMPRESSED_ROWS
        for begin in range(0, rows, step):
            for stats, array in zip(self._stats, arrays, strict=True):
                part = array.slice(begin, step)
                stats.add(part)
                self._writer.add(_BLOCKS + stats.column.id, _message(part, self._compression))
            self._starts.append(self._starts[-1] + min(step, rows - begin))

    def finish(self) -> int:
        """Write the columns' metadata and statistics; return the length of the file in bytes."""
        known = [s for s in self._stats if s.known]
        meta = _Meta(
            column_ids=[c.id for c in self._columns],
            types=[type_name(c.type) for c in self._columns],
            starts=self._starts,
            compression=self._compression,
            stats_ids=[s.column.id for s in known],
            null_ids=[s.column.id for s in known if s.has_nulls],
        )
        self._writer.add(_META, msgspec.msgpack.encode(meta))
        if known:
            rows = [s.rows() for s in known]
            batch = pa.RecordBatch.from_arrays(rows, names=[str(s.column.id) for s in known])
            self._writer.add(_STATS, batch.serialize())
        return self._writer.finish()


class ColumnReader:
    """The columns of one data file, in blocks; each is verified when it is first read.

    Args:
        files: the file system.
        path: path of the file.
        columns: what the manifest's schema has; the file may hold others, which were dropped, and lack
            those that were added since.

    Attributes:
        starts: first row of each block, then the number of rows.
        stats: statistics of the columns of which they are known.

    Raises:
        Corrupt: the file is damaged, or holds other columns.
    """

    def __init__(self, files: Files, path: str, columns: Sequence[Column]) -> None:
        data = files.map(path)
        self.file_bytes = len(data)
        self._path = path
        self._sections = Sections(data, path, FileKind.DATA)
        try:
            self._meta = msgspec.msgpack.decode(self._sections.tagged(_META), type=_Meta)
            kinds = [arrow_type(name) for name in self._meta.types]
        except (msgspec.MsgspecError, InvalidArgument) as err:
            raise Corrupt(f"{path} does not say which blocks it has: {err}") from err
        self.starts: Int64s = np.asarray(self._meta.starts, np.int64)
        ids = [ColumnId(i) for i in self._meta.column_ids]
        self._fields = {
            i: pa.schema([pa.field(str(i), k)]) for i, k in zip(ids, kinds, strict=False)
        }
        self._positions = {i: n for n, i in enumerate(ids)}
        self._open: dict[tuple[int, ColumnId], pa.Array] = {}
        self._ends: dict[ColumnId, pa.Array] = {}  # of the whole file, then of each block
        blocks = len(self.starts) - 1
        tags = [_BLOCKS + i for i in ids] * blocks
        wrong = [c.id for c in columns if not self._may_hold(c)]
        if len(kinds) != len(ids) or self._sections.tags[: len(tags)] != tags or wrong:
            raise Corrupt(
                f"{path} has columns {ids} of types {kinds}; {wrong} are missing or others"
            )
        self.stats = self._read_stats()

    def _may_hold(self, column: Column) -> bool:
        if column.id in self._fields:
            return bool(self._fields[column.id].field(0).type == column.type)
        return column.read_default is not None

    def check(self, files: Files) -> None:
        """Check that all data read so far were in the file. Raises Corrupt."""
        self._sections.check(files)

    def lacks(self, column: ColumnId) -> bool:
        """Return whether all rows are older than a column."""
        return column not in self._positions

    def column(self, chunk: int, column: Column) -> pa.Array:
        """Return one column of one block; its read default where the rows are older than it.

        Raises:
            Corrupt: the block is damaged.
        """
        found = self._open.get((chunk, column.id))
        if found is not None:
            return found
        if column.id not in self._positions:
            return older_than(column, int(self.starts[chunk + 1] - self.starts[chunk]))
        place = chunk * len(self._positions) + self._positions[column.id]
        message = self._sections.section(place)
        array = self._read(message, self._fields[column.id]).column(0)
        if len(array) != self.starts[chunk + 1] - self.starts[chunk]:
            raise Corrupt(f"{self._path} has {len(array)} values in block {chunk}")
        if self._meta.compression == "none":  # it lies in the mapped file and costs nothing
            self._open[chunk, column.id] = array
        return array

    def _read(self, message: memoryview, schema: pa.Schema) -> pa.RecordBatch:
        try:
            return pa.ipc.read_record_batch(pa.py_buffer(message), schema)
        except (pa.ArrowException, OSError, ValueError) as err:
            raise Corrupt(f"{self._path} holds a block that does not decode: {err}") from err

    def _read_stats(self) -> dict[ColumnId, ColumnStats]:
        ids = [ColumnId(i) for i in self._meta.stats_ids]
        if not ids:
            return {}
        fields = pa.schema([self._fields[i].field(0) for i in ids])
        batch = read_batch(pa.py_buffer(self._sections.tagged(_STATS)), fields)
        if batch.num_rows != 2 * len(self.starts):
            raise Corrupt(
                f"{self._path} has {batch.num_rows} ends of {len(self.starts) - 1} blocks"
            )
        nulls = set(self._meta.null_ids)
        self._ends = dict(zip(ids, batch.columns, strict=True))
        return {i: _stats(ends, 0, i in nulls) for i, ends in self._ends.items()}

    def stats_of(self, chunk: int, column: ColumnId) -> ColumnStats | None:
        """Return the statistics of a column in one block; `has_nulls` is of the whole file."""
        whole = self.stats.get(column)
        return None if whole is None else _stats(self._ends[column], chunk + 1, whole.has_nulls)

    def bytes_of(self, chunk: int, column: ColumnId) -> int:
        """Return the stored bytes of one column of one block, without reading it."""
        position = self._positions.get(column)
        place = chunk * len(self._positions) + (position or 0)
        return 0 if position is None else self._sections.size(place)


def block_ends(sizes: Sequence[Int64s], rows: int) -> list[int]:
    """Return where blocks end: each within `BLOCK_ROWS` and, if it has several rows, `BLOCK_BYTES`.

    Args:
        sizes: bytes per row of each column whose values vary in size.
        rows: number of rows.
    """
    if not rows:
        return []
    total = np.zeros(rows + 1, np.int64)
    for size in sizes:
        total[1:] += size
    np.cumsum(total, out=total)
    ends, at = [], 0
    while at < rows:
        fits = int(np.searchsorted(total, total[at] + BLOCK_BYTES, side="right")) - 1
        at = min(max(fits, at + 1), at + BLOCK_ROWS, rows)
        ends.append(at)
    return ends


def _stats(ends: pa.Array, number: int, has_nulls: bool) -> ColumnStats:
    least, greatest = ends[2 * number], ends[2 * number + 1]
    if not least.is_valid:
        return ColumnStats(None, None, has_nulls)
    return ColumnStats(least, greatest, has_nulls)


def cell_sizes(array: pa.Array) -> Int64s | None:
    """Return the bytes of each cell of a string or binary column (0 for null); None for others."""
    if not is_varying(array.type):
        return None
    sizes = pc.binary_length(array)
    whole = sizes.fill_null(0) if sizes.null_count else sizes
    return np.asarray(whole.to_numpy(), np.int64)


def _message(array: pa.Array, compression: str) -> pa.Buffer:
    batch = pa.RecordBatch.from_arrays([array], names=["v"])
    plain = batch.serialize()
    if compression == "none":
        return plain
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue()
    schema_bytes = 8 + int.from_bytes(stream[4:8].to_pybytes(), "little")
    packed = stream.slice(schema_bytes, len(stream) - schema_bytes - 8)  # 8: the end of the stream
    return packed if packed.size <= WORTHWHILE * plain.size else plain
