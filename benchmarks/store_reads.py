"""Reads of the store alone, one thread: scans beside pyarrow reading the same rows from one Parquet file.

`measure` adds its lines to a report and needs a directory with some GB; `python -m benchmarks.store_reads`
runs it alone. Every figure is the median of several runs; A and B of a ratio are taken in turn.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.report import Report
from benchmarks.wide import SCHEMA, rows
from nyala.common.ids import Operation, OpId, TableId, TabletId
from nyala.common.predicate import Predicate
from nyala.common.schema import from_arrow
from nyala.common.where import parse
from nyala.env.files import SystemFiles
from nyala.tablet import ops
from nyala.tablet.manifest import Cut, TabletInfo
from nyala.tablet.tablet import Tablet

ROWS, BATCH, VERSIONS = 5_000_000, 100_000, 100
TABLE = from_arrow(SCHEMA, ["k"])
IDS = {c.name: c.id for c in TABLE.columns}
TENTH: Predicate = parse("d0 < 0.1", TABLE)


@dataclass
class Store:
    """A tablet that takes batches; each is one operation with the next stamp."""

    tablet: Tablet
    now: int = 0

    @staticmethod
    def make(directory: Path, **options: str) -> "Store":
        """Create an empty one."""
        info = TabletInfo(TabletId("ab" * 16), TableId("cd" * 16), "t", TABLE, options=options)
        return Store(Tablet.create(SystemFiles(), str(directory), info))

    def upsert(self, keys: np.ndarray, seed: int) -> None:
        """Write rows with these keys."""
        message = rows(keys, seed).serialize().to_pybytes()
        ids = tuple(IDS.values())
        payload = ops.encode(ops.WriteOp(ops.Op.UPSERT, TABLE.version, ids, False, message))
        self.now += 1
        self.tablet.apply([Operation(OpId(1, self.now), self.now, payload)])

    def flush(self) -> None:
        """Write what is in memory."""
        build = self.tablet.prepare_flush(Cut(OpId(1, self.now), self.now))
        assert build is not None, "nothing to flush"
        build()()

    def compact(self) -> None:
        """Merge all, keep all history."""
        while (build := self.tablet.prepare_compaction(force=True)) is not None:
            build()()

    def fill(self, count: int) -> None:
        """Insert keys 0, 1, ... in random order; flush now and then, as a server would."""
        keys = np.random.default_rng(1).permutation(count).astype(np.int64)
        for number, at in enumerate(range(0, count, BATCH)):
            self.upsert(keys[at : at + BATCH], number)
            if number % 10 == 9:
                self.flush()


def in_turn(*works: Callable[[], object], runs: int = 5) -> list[float]:
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


def _scans(report: Report, label: str, store: Store, at: int, file: Path) -> None:
    """Count, two columns of a tenth, and all columns, beside the same from a Parquet file."""
    view = store.tablet.view()
    pair = [IDS["i0"], IDS["d0"]]
    pq.write_table(pa.Table.from_batches(view.scan(at)), file)

    def theirs(**kw: object) -> Callable[[], object]:
        return lambda: pq.read_table(file, use_threads=False, **kw)

    tenth = theirs(columns=["i0", "d0"], filters=pc.field("d0") < 0.1)
    works: list[tuple[str, Callable[[], object], Callable[[], object], float]] = [
        ("count", lambda: view.count(at), theirs(columns=["k"]), 0.2),
        ("2 columns of a tenth", lambda: _drain(view.scan(at, pair, TENTH)), tenth, 1),
        ("all columns", lambda: _drain(view.scan(at)), theirs(), 1.2),
    ]
    for name, ours, other_way, target in works:
        mine, other = in_turn(ours, other_way)
        said = f"{mine * 1e3:.1f} ms, pyarrow {other * 1e3:.1f} ms"
        report.add(f"{name}, {label}", mine / other, "x of pyarrow", said, at_most=target)
    file.unlink()


def _gets(
    report: Report, label: str, store: Store, keys: int, targets: tuple[float, float]
) -> None:
    """One key, and a thousand."""
    view, rng = store.tablet.view(), np.random.default_rng(3)
    field = pa.schema([SCHEMA.field("k")])
    for count, runs, target in ((1, 2000, targets[0]), (1000, 100, targets[1])):
        asked = [
            pa.record_batch([pa.array(rng.integers(0, keys, count))], schema=field)
            for _ in range(runs)
        ]
        taken = []
        for batch in asked:
            began = time.perf_counter()
            found = view.get(store.now, batch)
            taken.append(time.perf_counter() - began)
            assert found.num_rows == count, f"{found.num_rows} rows of {count} keys"
        middle = statistics.median(taken) * 1e6
        report.add(f"get {count}, {label}", middle, "us", at_most=target)


def _updated_since(report: Report, directory: Path, compression: str) -> None:
    """Scans now and in the past, a tenth of the rows updated since: as flushed, and compacted."""
    store = Store.make(directory / f"reads-{compression}", compression=compression)
    store.fill(ROWS)
    store.compact()
    past, file = store.now, directory / "same.parquet"
    changed = np.random.default_rng(2).permutation(ROWS)[: ROWS // 10].astype(np.int64)
    for at in range(0, len(changed), BATCH):
        store.upsert(changed[at : at + BATCH], 1000 + at)
    store.flush()
    for state in ("flushed", "compacted"):
        for label, at in (("now", store.now), ("past", past)):
            _scans(report, f"{label}, {state}, {compression}", store, at, file)
        _gets(report, f"{state}, {compression}", store, ROWS, (500, 10_000))
        store.compact()


def _versions(report: Report, directory: Path) -> None:
    """A hundred versions of each key, at the present time, beside one version."""
    count = ROWS // VERSIONS
    stores = [Store.make(directory / f"versions-{n}") for n in (1, VERSIONS)]
    for store, versions in zip(stores, (1, VERSIONS), strict=True):
        for version in range(versions):
            store.upsert(
                np.random.default_rng(version).permutation(count).astype(np.int64), version
            )
        store.flush()
        store.compact()
    one, many = ((s.tablet.view(), s.now) for s in stores)
    pair = [IDS["i0"], IDS["d0"]]
    for name, work in (
        ("count", lambda v, at: v.count(at)),
        ("2 columns of a tenth", lambda v, at: _drain(v.scan(at, pair, TENTH))),
        ("all columns", lambda v, at: _drain(v.scan(at))),
    ):
        base, taken = in_turn(lambda w=work: w(*one), lambda w=work: w(*many), runs=21)
        report.add(
            f"{name}, {VERSIONS} versions of {count:,} keys", taken / base, "x of one version",
            f"{taken * 1e3:.2f} ms, one version {base * 1e3:.2f} ms", at_most=1.5,
        )  # fmt: skip


def measure(report: Report, directory: str) -> None:
    """Add the lines of reads to a report.

    Args:
        report: of the store.
        directory: for files; they stay.
    """
    folder = Path(directory)
    fresh = Store.make(folder / "fresh")
    for at in range(0, 500_000, 10_000):
        fresh.upsert(np.arange(at, at + 10_000, dtype=np.int64), at)
    _gets(report, "fresh", fresh, 500_000, (60, 2_000))
    _versions(report, folder)
    for compression in ("none", "zstd"):
        _updated_since(report, folder, compression)


def main() -> None:
    """Run it alone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=ROWS)
    globals()["ROWS"] = parser.parse_args().rows
    report = Report("store_reads", f"{ROWS:,} wide rows, one thread")
    with tempfile.TemporaryDirectory() as directory:
        measure(report, directory)
    report.show()


if __name__ == "__main__":
    main()
