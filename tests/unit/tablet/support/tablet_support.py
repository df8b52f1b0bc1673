"""Small tables, operations on them, and their rows, for the tests of the tablet."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from nyala.common.alteration import Step, alter
from nyala.common.ids import ColumnId, CommittedOperation, OpId, TableId, TabletId
from nyala.common.schema import Schema, from_arrow
from nyala.env.files import SystemFiles
from nyala.storage.flush_point import StoredFlushPoint
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.diskrowset import DiskRowSet, open_all
from nyala.tablet.files.manifest import TabletInfo, load
from nyala.tablet.files.replicated_ops import RowError, RowOp, SchemaOp, WriteOp
from nyala.tablet.tablet import Tablet

INT_KEY = from_arrow(pa.schema([("k", pa.int64()), ("a", pa.int64()), ("s", pa.string())]), ["k"])
PAIR_KEY = from_arrow(
    pa.schema(
        [
            pa.field("host", pa.string()),
            pa.field("n", pa.int32()),
            pa.field("a", pa.int64(), nullable=False),
            pa.field("s", pa.string()),
            pa.field("b", pa.binary()),
        ]
    ),
    ["host", "n"],
    defaults={"s": "none"},
    immutable=["b"],
)


def info(schema: Schema = INT_KEY, **options: str) -> TabletInfo:
    return TabletInfo(TabletId("ab" * 16), TableId("cd" * 16), "t", schema, options=options)


def message(batch: pa.RecordBatch) -> bytes:
    return bytes(batch.serialize())


def payload(
    schema: Schema,
    op: RowOp,
    rows: Sequence[dict[str, Any]],
    columns: Sequence[str] | None = None,
    *,
    all_or_nothing: bool = False,
) -> bytes:
    """Encode rows (dicts; for MIXED with `_op`) giving these columns (None: all)."""
    chosen = [schema.column(n) for n in columns or [c.name for c in schema.columns]]
    arrays = [pa.array([r.get(c.name) for r in rows], c.type) for c in chosen]
    names = [c.name for c in chosen]
    if op is RowOp.MIXED:
        arrays.append(pa.array([int(r["_op"]) for r in rows], pa.uint8()))
        names.append("_op")
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    ids = tuple(c.id for c in chosen)
    return replicated_ops.encode(WriteOp(op, schema.version, ids, all_or_nothing, message(batch)))


class Driver:
    """A tablet with a log that grows: gives each operation the next index and stamp."""

    def __init__(self, directory: str, schema: Schema = INT_KEY, **kwargs: Any) -> None:
        self.files = kwargs.pop("files", None) or SystemFiles()
        self.directory = directory
        self.start: int = kwargs.pop("start", 0)  # stamps are above it
        self.schema = schema
        self.kwargs = {k: kwargs.pop(k) for k in ("hash_keys",) if k in kwargs}
        self.tablet = kwargs.pop("tablet", None) or Tablet.create(
            self.files, directory, info(schema, **kwargs), **self.kwargs
        )
        self.log: list[CommittedOperation] = []
        self.results: list[bytes] = []

    @property
    def now(self) -> int:
        return self.log[-1].stamp if self.log else self.start

    def entry(self, data: bytes, step: int = 10) -> CommittedOperation:
        operation = CommittedOperation(OpId(1, len(self.log) + 1), self.now + step, data)
        self.log.append(operation)
        return operation

    def write(
        self,
        op: RowOp,
        rows: Sequence[dict[str, Any]],
        columns: Sequence[str] | None = None,
        **kw: Any,
    ) -> list[tuple[int, str]]:
        """Apply one write; return the errors as (row, code)."""
        return [(e.row, e.code) for e in self.write_full(op, rows, columns, **kw)[1]]

    def write_full(
        self,
        op: RowOp,
        rows: Sequence[dict[str, Any]],
        columns: Sequence[str] | None = None,
        **kw: Any,
    ) -> tuple[int, list[RowError]]:
        data = payload(self.schema, op, rows, columns, **kw)
        [result] = self.tablet.apply([self.entry(data)])
        self.results.append(result)
        return replicated_ops.decode_result(result)

    def alter(self, *steps: Step) -> tuple[int, list[RowError]]:
        """Apply the operation that takes the table's schema these steps further."""
        self.schema = alter(self.schema, steps)
        return self.apply_schema(self.schema)

    def apply_schema(self, schema: Schema, **options: str) -> tuple[int, list[RowError]]:
        """Apply the operation that makes this the table's schema."""
        known = {**self.tablet.info.options, **options}
        data = replicated_ops.encode_schema(SchemaOp(schema, self.tablet.info.table_name, known))
        [result] = self.tablet.apply([self.entry(data)])
        self.results.append(result)
        return replicated_ops.decode_result(result)

    def flush_point(self) -> StoredFlushPoint:
        last = self.log[-1] if self.log else None
        return (
            StoredFlushPoint(last.id, last.stamp, f"sessions@{last.id}".encode())
            if last
            else StoredFlushPoint()
        )

    def flush(self) -> bool:
        build = self.tablet.prepare_flush(self.flush_point())
        if build is None:
            return False
        build()()
        return True

    def compact(self, horizon: int | None = None, *, force: bool = True) -> bool:
        build = self.tablet.prepare_compaction(horizon, force=force)
        if build is None:
            return False
        build()()
        return True

    def reopen(self, files: Any = None) -> None:
        """Open again from the files, and replay the log from the manifest's cut."""
        self.tablet = Tablet.open(files or self.files, self.directory, **self.kwargs)
        after = self.tablet.flush_point.op.index
        self.tablet.apply(self.log[after:])

    def disk_rowsets(self) -> list[DiskRowSet]:
        """Open the disk rowsets once more, as the manifest names them."""
        return open_all(self.files, self.directory, load(self.files, self.directory))

    def rows(self, at: int | None = None, **kw: Any) -> list[dict[str, Any]]:
        batches = self.tablet.view().scan(self.now if at is None else at, **kw)
        return [row for b in batches for row in b.to_pylist()]

    def ids(self, *names: str) -> list[ColumnId]:
        return [self.schema.column(n).id for n in names]


def table_bytes(batches: Iterable[pa.RecordBatch]) -> bytes:
    """One string for all that a scan returned, values and batch limits alike."""
    found = list(batches)
    if not found:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found[0].schema) as writer:
        for batch in found:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def numbered(start: int, stop: int, **values: Any) -> list[dict[str, Any]]:
    counter = itertools.count()
    return [{"k": k, "a": next(counter), "s": f"s{k}", **values} for k in range(start, stop)]
