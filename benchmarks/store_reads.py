"""Reads of the store alone, one thread: scans beside pyarrow reading the same rows from one Parquet file.

Every figure is the median of several runs; both sides of a ratio are measured in turn.
"""

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.report import Report
from benchmarks.store_tables import Kind, Store
from nyala.common.expressions.predicate import Predicate
from nyala.common.expressions.where import parse
from nyala.common.ids import ColumnId
from nyala.tablet.files.replicated_ops import RowOp

VERSIONS = 100
GETS_S = 1.5
"""Seconds after which no more look-ups of a kind are made."""
_TENTH = 0.1 * 2**24
"""Value below which a tenth of `d2` lies, which has 24 random bits."""


def in_turn(*works: Callable[[], object], runs: int = 3) -> list[float]:
    """Return the median time of each work in seconds; they run in turn."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(runs + 1):
        for work, taken in zip(works, times, strict=True):
            began = time.perf_counter()
            work()
            taken.append(time.perf_counter() - began)
    return [statistics.median(t[1:]) for t in times]


def _drain(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(b.num_rows for b in batches)


def _pair(kind: Kind) -> tuple[list[ColumnId], Predicate]:
    """Return two columns, and a predicate that a tenth of the rows satisfies."""
    ids = {c.name: c.id for c in kind.schema.columns}
    return [ids["i1"], ids["d2"]], parse(f"d2 < {_TENTH}", kind.schema)


def _scans(report: Report, label: str, store: Store, at: int, file: Path) -> None:
    """Count, two columns of a tenth, and all columns, beside the same from a Parquet file."""
    view = store.tablet.view()
    pair, tenth = _pair(store.kind)
    if not file.exists():
        pq.write_table(pa.Table.from_batches(view.scan(at)), file)

    def parquet(**kw: object) -> Callable[[], object]:
        return lambda: pq.read_table(file, use_threads=False, **kw)

    parquet_tenth = parquet(columns=["i1", "d2"], filters=pc.field("d2") < _TENTH)
    keys = [c.name for c in store.kind.schema.key_columns]
    works: list[tuple[str, Callable[[], object], Callable[[], object], float]] = [
        ("count", lambda: view.count(at), parquet(columns=keys), 0.2),
        ("2 columns of a tenth", lambda: _drain(view.scan(at, pair, tenth)), parquet_tenth, 1),
        ("all columns", lambda: _drain(view.scan(at)), parquet(), 1.2),
    ]
    for name, own, other_way, target in works:
        own_s, other = in_turn(own, other_way)
        text = f"{own_s * 1e3:.1f} ms, pyarrow {other * 1e3:.1f} ms"
        line = f"{store.kind.name}: {name}, {label}"
        report.add(line, own_s / other, "x of pyarrow", text, at_most=target)


def _gets(
    report: Report, label: str, store: Store, keys: int, targets: tuple[float, float]
) -> None:
    """Look-ups of one key, and of a thousand keys."""
    view, rng = store.tablet.view(), np.random.default_rng(3)
    fields = pa.schema([store.kind.fields.field(c.name) for c in store.kind.schema.key_columns])
    for count, runs, target in ((1, 1000, targets[0]), (1000, 30, targets[1])):
        taken: list[float] = []
        while len(taken) < runs and sum(taken) < GETS_S:
            arrays = store.kind.key_arrays(rng.integers(0, keys, count))
            asked = pa.RecordBatch.from_arrays(arrays, schema=fields)
            began = time.perf_counter()
            found = view.get(store.now, asked)
            taken.append(time.perf_counter() - began)
            assert found.num_rows == count, f"{found.num_rows} rows of {count} keys"
        middle = statistics.median(taken) * 1e6
        report.add(f"{store.kind.name}: get {count}, {label}", middle, "us", at_most=target)


def updated_since(
    report: Report, store: Store, past: int, rows: int, directory: str, label: str = ""
) -> None:
    """Scans now and in the past, a tenth of the rows changed since: as flushed, and compacted.

    Args:
        report: report of the store.
        store: compacted before `past`; later changes are flushed.
        past: time of the scans in the past.
        rows: number of its rows; keys are lower.
        directory: folder of the Parquet files.
        label: name of the store in the report.
    """
    files = {"now": Path(directory, "now.parquet"), "past": Path(directory, "past.parquet")}
    for state in ("flushed", "compacted"):
        for when, at in (("now", store.now), ("past", past)):
            _scans(report, f"{when}, {state}{label}, {rows:,}", store, at, files[when])
        _gets(report, f"{state}{label}, {rows:,} rows", store, rows, (500, 10_000))
        store.compact(force=True)
    for file in files.values():
        file.unlink()


def fresh(report: Report, kind: Kind, rows: int, directory: str) -> None:
    """Look-ups of rows in memory."""
    store = Store(kind, f"{directory}/fresh")
    for operation in store.operations(RowOp.INSERT, np.arange(rows, dtype=np.int64), 10_000):
        store.tablet.apply([operation])
    _gets(report, f"fresh, {rows:,} rows in memory", store, rows, (60, 2_000))
    shutil.rmtree(store.directory)


def versions(report: Report, kind: Kind, rows: int, directory: str) -> None:
    """A hundred versions of each key, at the present time, beside one version."""
    count = rows // VERSIONS
    stores = [Store(kind, f"{directory}/versions-{n}") for n in (1, VERSIONS)]
    for store, many in zip(stores, (1, VERSIONS), strict=True):
        for version in range(many):
            keys = np.random.default_rng(version).permutation(count)
            store.write(RowOp.UPSERT, keys, count, salt=version, flush=version == many - 1)
        store.compact(force=True)
    pair, tenth = _pair(kind)
    works: list[tuple[str, Callable[[Store], object]]] = [
        ("count", lambda s: s.tablet.view().count(s.now)),
        ("2 columns of a tenth", lambda s: _drain(s.tablet.view().scan(s.now, pair, tenth))),
        ("all columns", lambda s: _drain(s.tablet.view().scan(s.now))),
    ]
    for name, work in works:
        base, taken = in_turn(*(partial(work, s) for s in stores), runs=21)
        report.add(
            f"{kind.name}: {name}, {VERSIONS} versions of {count:,} keys", taken / base,
            "x of one version", f"{taken * 1e3:.2f} ms, one version {base * 1e3:.2f} ms",
            at_most=1.5,
        )  # fmt: skip
    for store in stores:
        shutil.rmtree(store.directory)
