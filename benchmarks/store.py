"""The tablet store alone: one thread, no log, real files; rates, latencies, bytes, beside other stores.

`./run bench store` measures 5 M rows; `--quick` a tenth of that. The time to encode
operations is not counted; their application and all flushes are, in one thread. Memory allocation and garbage
collection are set up as in servers (`testing/forkserver.py`), also for the other stores. `--kudu FOLDER`
adds the bytes of the same rows in a real Kudu.
"""

import gc
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import kudu_disk, store_reads, store_rivals
from benchmarks.report import Report
from benchmarks.store_tables import INT_KEY, STRING_KEYS, Keys, Kind, Store, Taken
from nyala.cli.serve import GC_THRESHOLD
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.tablet import Tablet

FULL, QUICK = 5_000_000, 500_000
STAMP = 8
"""Bytes of each row in an index file for its begin time: history, not part of the key index."""
FEWER = 5
"""Fraction of the rows for measurements that do not depend on their number."""


def run(*, quick: bool = False) -> Report:
    """Run the benchmark."""
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    rows = QUICK if quick else FULL
    report = Report("store", f"{rows:,} wide rows, one thread, no log, real files")
    with tempfile.TemporaryDirectory(prefix="nyala-store-") as directory:
        rates = _table(report, INT_KEY, rows, directory)
        store_rivals.measure(report, rows, directory, rates)
        _table(report, STRING_KEYS, rows, directory)
        kudu = kudu_disk.measure(report)
        for kind in (INT_KEY, STRING_KEYS):
            store_reads.fresh(report, kind, min(rows, 500_000), directory)
            store_reads.versions(report, kind, rows, directory)
            for compression in ("none", "zstd"):
                _compressed(report, kind, rows // FEWER, directory, compression, kudu)
    return report


def _table(report: Report, kind: Kind, rows: int, directory: str) -> dict[int, float]:
    """Measure one table; return rows/s of random upserts by batch size."""
    chance = np.random.default_rng(7)
    keys = np.arange(rows, dtype=np.int64)
    place = f"{directory}/{kind.name.replace(' ', '-')}"
    for order, given in (("key", keys), ("random", chance.permutation(keys))):
        shutil.rmtree(place, ignore_errors=True)
        store = Store(kind, place)
        taken = store.write(RowOp.INSERT, given, 10_000)
        _rate(report, f"{kind.name}: insert in {order} order, 10k", rows, taken, 2.5e6)
    _background(report, store, "inserts")
    store.compact(force=True)
    _index(report, store, rows)
    _open(report, store)
    past = store.now
    part = chance.permutation(rows)[: rows // 10]
    columns = len(kind.schema.key_ids) + 2
    taken = store.write(RowOp.UPDATE, part, 10_000, salt=3, columns=columns)
    _rate(report, f"{kind.name}: update of 2 columns, compacted, 10k", len(part), taken, 0.5e6)
    store_reads.updated_since(report, store, past, rows, directory)
    rates = _upserts(report, store, chance, rows)
    _groups(report, store, chance.integers(0, rows, 20_000))
    _background(report, store, "upserts")
    store.compact(force=True)
    _open(report, store)
    shutil.rmtree(place)
    return rates


def _rate(report: Report, name: str, rows: int, taken: Taken, target: float) -> float:
    rate = rows / taken.seconds
    text = f"{taken.cpu / rows * 1e6:.2f} us of CPU a row, {taken.flushing / taken.seconds:.0%} flushing"
    report.add(name, rate, "rows/s", text, at_least=target)
    return rate


def _compressed(
    report: Report, kind: Kind, rows: int, directory: str, compression: str, kudu: kudu_disk.Bytes
) -> None:
    """Bytes of one copy after a compaction of everything, index included, all history kept."""
    place = f"{directory}/disk-{compression}-{kind.name.replace(' ', '-')}"
    label = f"{kind.name}: disk, {compression}, {rows:,}"
    store = Store(kind, place, compression=compression)
    store.write(RowOp.INSERT, np.arange(rows, dtype=np.int64), 10_000)
    store.compact(force=True)
    _disk(report, store, f"{label} fresh rows", rows, kudu.fresh)
    if compression != "none" and not kind.strings:
        past = store.now
        part = np.random.default_rng(9).permutation(rows)[: rows // 10]
        store.write(RowOp.UPSERT, part, 10_000, salt=9)
        store_reads.updated_since(report, store, past, rows, directory, f", {compression}")
    given = np.random.default_rng(8).integers(0, rows, rows * 6 // 10)
    store.write(RowOp.UPSERT, given, 10_000, salt=8)
    store.compact(force=True)
    _disk(report, store, f"{label} and 0.6 upserts a row", rows, kudu.upserted)
    shutil.rmtree(place)


def _disk(report: Report, store: Store, name: str, rows: int, kudu: float) -> None:
    size = store.bytes_on_disk() / rows
    wanted = None if store.kind.strings else 0.6 * kudu
    report.add(name, size, "bytes/row", f"{size / kudu:.0%} of Kudu's", at_most=wanted)


def _upserts(
    report: Report, store: Store, chance: np.random.Generator, rows: int
) -> dict[int, float]:
    rates = {}
    for batch, part, target in ((10_000, 0.4, 1e6), (1_000, 0.2, 1e6), (100, 0.06, 0.8e6)):
        given = chance.integers(0, rows, int(rows * part))
        taken = store.write(RowOp.UPSERT, given, batch, salt=batch)
        name = f"{store.kind.name}: random upsert, {batch:,}"
        rates[batch] = _rate(report, name, len(given), taken, target)
        store.compact(force=False)
    return rates


def _groups(report: Report, store: Store, keys: Keys) -> None:
    """One-row upserts: a hundred in one call, as a replica applies its backlog, and one by one."""
    for size, given, words, target in (
        (100, keys, "groups of 100", 4),
        (1, keys[:2000], "alone", None),
    ):
        single = list(store.operations(RowOp.UPSERT, given, 1, salt=9 + size))
        each = []
        for at in range(0, len(single), size):
            began = time.perf_counter()
            store.tablet.apply(single[at : at + size])
            each.append((time.perf_counter() - began) / size * 1e6)
        name = f"{store.kind.name}: one-row upserts, {words}"
        text = f"median of {len(each)} calls; {statistics.fmean(each):.2f} on average"
        report.add(name, statistics.median(each), "us each", text, at_most=target)
    store.flush(store.now)


def _background(report: Report, store: Store, what: str) -> None:
    """Cost of the policy's compactions after some work, and the result."""
    taken = store.merging + store.compact(force=False)
    name = f"{store.kind.name}: merges by the policy after {what}"
    now = store.tablet.figures()
    amplified = 1 + now.merged / max(now.flushed, 1)
    report.add(
        name, taken, "s",
        f"{now.rowsets} rowsets, {now.depth} of a key, each version written {amplified:.1f} times",
    )  # fmt: skip


def _index(report: Report, store: Store, rows: int) -> None:
    names = [n for n in store.files.list(store.directory) if n.endswith(".idx")]
    size = sum(store.files.size(f"{store.directory}/{n}") for n in names) / rows
    name = f"{store.kind.name}: key index"
    report.add(name, size - STAMP, "bytes/row", "keys and slots, mapped", at_most=24)
    report.add(f"{name} and when each version began", size, "bytes/row", "the whole file")


def _open(report: Report, store: Store) -> None:
    before = _anonymous()
    began = time.perf_counter()
    opened = Tablet.open(store.files, store.directory)
    taken = time.perf_counter() - began
    grown = (_anonymous() - before) / opened.rows
    name = store.kind.name
    report.add(f"{name}: open", taken, "s", f"{opened.figures().versions:,} versions", at_most=0.2)
    report.add(f"{name}: memory of an open tablet", grown, "bytes/row", at_most=24)


def _anonymous() -> int:
    """Return the bytes of this process outside of mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0
