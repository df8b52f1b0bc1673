"""The same upserts in other stores in the same run: DuckDB, Delta Lake, RocksDB.

Each runs in its own process, `python -m benchmarks.store_rivals NAME ROWS FOLDER`, within limits: it
fills its table for `FILL_S` at most (the reached number of rows is in its lines), upserts for `UPSERT_S` per
batch size, and is killed after `LIMIT_S`. One that is not installed is reported as such.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.report import Report
from benchmarks.store_tables import INT_KEY, Keys

LOAD = 500_000
"""Rows of a batch while a table is filled."""
FILL_S, UPSERT_S, LIMIT_S = 40, 6, 90
RIVALS: Mapping[str, tuple[str, dict[int, int], float]] = {
    "duckdb": ("DuckDB, on conflict", {10_000: 5, 1_000: 10, 100: 20}, 20),
    "deltalake": ("Delta, merge", {10_000: 2}, 50),
    "rocksdict": ("RocksDB, write batch", {10_000: 20, 1_000: 50, 100: 100}, 5),
}
"""By library: its workload, maximum number of batches by size, and the target ratio of nyala to it."""
Upsert = Callable[[pa.RecordBatch], None]


def measure(report: Report, rows: int, directory: str, ours: Mapping[int, float]) -> None:
    """Add the lines of the other stores.

    Args:
        report: report of the store.
        rows: number of rows of each table.
        directory: folder of the files.
        ours: nyala's rows/s of random upserts by batch size.
    """
    for module, (name, batches, times) in RIVALS.items():
        if find_spec(module) is None:
            print(f"{module} is not installed and is left out", flush=True)
            continue
        words = ["-m", "benchmarks.store_rivals", module, str(rows), f"{directory}/{module}"]
        with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None, "its output is a pipe"
            limit = threading.Timer(LIMIT_S, child.kill)
            limit.start()
            lines_before = len(report.rows)
            for line in child.stdout:
                _tell(report, name, times, ours, json.loads(line))
            limit.cancel()
        if len(report.rows) - lines_before < 2 * len(batches):
            print(f"{name}: ended after {LIMIT_S} s or failed; its other sizes are left out")


def _tell(
    report: Report, name: str, times: float, ours: Mapping[int, float], result: dict[str, float]
) -> None:
    batch = int(result["batch"])
    faster = ours[batch] / result["rate"]
    loaded = f"{int(result['batches'])} batches into {int(result['rows']):,} rows"
    report.add(f"{name}: random upsert, {batch:,}", result["rate"], "rows/s", loaded)
    report.add(f"  ours beside {name}, {batch:,}", faster, "times, per row", at_least=times)


def main(module: str, rows: int, directory: str) -> None:
    """Measure one store in this process; print one JSON object for each size of batch."""
    chance = np.random.default_rng(11)
    fill, upsert = {"duckdb": _duckdb, "deltalake": _delta, "rocksdict": _rocksdb}[module](
        import_module(module), directory
    )
    began, filled = time.perf_counter(), 0
    while filled < rows and time.perf_counter() - began < FILL_S:
        fill(INT_KEY.rows(np.arange(filled, filled + LOAD, dtype=np.int64)))
        filled += LOAD
    for batch, most in RIVALS[module][1].items():
        taken, count, done = 0.0, 0, 0
        while done < most and taken < UPSERT_S:
            given = INT_KEY.rows(chance.integers(0, filled, batch), 5)
            given = given.take(pa.array(_first_of_each(given)))
            began = time.perf_counter()
            upsert(given)
            taken += time.perf_counter() - began
            count += given.num_rows
            done += 1
        result = {"batch": batch, "rate": count / taken, "batches": done, "rows": filled}
        print(json.dumps(result), flush=True)


def _first_of_each(batch: pa.RecordBatch) -> Keys:
    """Neither ON CONFLICT nor merge accepts a key twice in one statement."""
    return np.unique(batch.column(0).to_numpy(), return_index=True)[1]


def _duckdb(library: Any, directory: str) -> tuple[Upsert, Upsert]:
    base = library.connect(f"{directory}.duckdb", config={"threads": 1})
    columns = ["key bigint primary key", *(f"i{n} bigint" for n in range(1, 5))]
    columns += ["d1 double", "d2 double", "s1 varchar", "s2 varchar"]
    base.execute(f"create table t ({', '.join(columns)})")

    def upsert(batch: pa.RecordBatch) -> None:
        base.register("part", pa.Table.from_batches([batch]))
        base.execute("insert or replace into t select * from part")

    def fill(batch: pa.RecordBatch) -> None:
        base.register("part", pa.Table.from_batches([batch]))
        base.execute("insert into t select * from part")

    return fill, upsert


def _delta(library: Any, directory: str) -> tuple[Upsert, Upsert]:
    def fill(batch: pa.RecordBatch) -> None:
        library.write_deltalake(directory, pa.Table.from_batches([batch]), mode="append")

    def upsert(batch: pa.RecordBatch) -> None:
        merge = library.DeltaTable(directory).merge(
            pa.Table.from_batches([batch]), "t.key = s.key", source_alias="s", target_alias="t"
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    return fill, upsert


def _rocksdb(library: Any, directory: str) -> tuple[Upsert, Upsert]:
    options = library.Options(raw_mode=True)
    options.create_if_missing(True)
    base = library.Rdict(directory, options)

    def upsert(batch: pa.RecordBatch) -> None:
        together = library.WriteBatch(raw_mode=True)
        for key, value in _packed(batch):
            together.put(key, value)
        base.write(together)

    return upsert, upsert


def _packed(batch: pa.RecordBatch) -> list[tuple[bytes, bytes]]:
    """Return rows as bytes, encoded for all rows at once."""
    count = batch.num_rows
    keys = batch.column(0).to_numpy().astype(">i8").view(np.uint8).tobytes()
    fixed = [batch.column(n).to_numpy().view(np.uint8).reshape(count, 8) for n in range(1, 7)]
    texts = [
        np.frombuffer(batch.column(n).buffers()[2], np.uint8)[: 20 * count].reshape(count, 20)
        for n in (7, 8)
    ]
    rows = np.concatenate([*fixed, *texts], axis=1).tobytes()
    width = len(rows) // count
    return [(keys[i * 8 : i * 8 + 8], rows[i * width : (i + 1) * width]) for i in range(count)]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
