"""What other stores do with the same upserts in the same run: DuckDB, Delta Lake, RocksDB.

Each one that is not installed is left out, with a word. They get fewer rows than we do, where they would take
minutes; each has the same number of rows in its table.
"""

import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.report import Report
from benchmarks.store_tables import INT_KEY, Keys

LOAD = 500_000
"""Rows a time while a table is filled."""
Upsert = Callable[[pa.RecordBatch], None]


def measure(report: Report, rows: int, directory: str, ours: Mapping[int, float]) -> None:
    """Add the rivals' lines.

    Args:
        report: of the store.
        rows: that each table has.
        directory: for files.
        ours: our rows/s of random upserts by batch size.
    """
    chance = np.random.default_rng(11)
    for name, module, make, batches, times in (
        ("DuckDB, on conflict", "duckdb", _duckdb, ((10_000, 5), (1_000, 5), (100, 5)), 20),
        ("Delta, merge", "deltalake", _delta, ((10_000, 2),), 50),
        ("RocksDB, write batch", "rocksdict", _rocksdb, ((10_000, 20), (1_000, 50), (100, 100)), 5),
    ):
        try:
            library = import_module(module)
        except ImportError:
            print(f"{module} is not installed and is left out")
            continue
        upsert = make(library, rows, f"{directory}/{module}")
        for batch, count in batches:
            given = [INT_KEY.rows(chance.integers(0, rows, batch), 5) for _ in range(count)]
            given = [g.take(pa.array(_first_of_each(g))) for g in given]
            began = time.perf_counter()
            for part in given:
                upsert(part)
            rate = sum(g.num_rows for g in given) / (time.perf_counter() - began)
            faster = ours[batch] / rate
            line = f"{name}: random upsert, {batch:,}"
            report.add(line, rate, "rows/s", f"ours is {faster:,.0f}x")
            report.add(f"  ours beside {name}, {batch:,}", faster, "times", at_least=times)


def _first_of_each(batch: pa.RecordBatch) -> Keys:
    """Neither ON CONFLICT nor merge takes a key twice in one statement."""
    return np.unique(batch.column(0).to_numpy(), return_index=True)[1]


def _parts(rows: int) -> list[pa.RecordBatch]:
    keys = np.arange(rows, dtype=np.int64)
    return [INT_KEY.rows(keys[at : at + LOAD]) for at in range(0, rows, LOAD)]


def _duckdb(library: Any, rows: int, directory: str) -> Upsert:
    base = library.connect(f"{directory}.duckdb", config={"threads": 1})
    columns = ["key bigint primary key", *(f"i{n} bigint" for n in range(1, 5))]
    columns += ["d1 double", "d2 double", "s1 varchar", "s2 varchar"]
    base.execute(f"create table t ({', '.join(columns)})")
    for part in _parts(rows):
        base.register("part", pa.Table.from_batches([part]))
        base.execute("insert into t select * from part")

    def upsert(batch: pa.RecordBatch) -> None:
        base.register("part", pa.Table.from_batches([batch]))
        base.execute("insert or replace into t select * from part")

    return upsert


def _delta(library: Any, rows: int, directory: str) -> Upsert:
    for part in _parts(rows):
        library.write_deltalake(directory, pa.Table.from_batches([part]), mode="append")

    def upsert(batch: pa.RecordBatch) -> None:
        merge = library.DeltaTable(directory).merge(
            pa.Table.from_batches([batch]), "t.key = s.key", source_alias="s", target_alias="t"
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    return upsert


def _rocksdb(library: Any, rows: int, directory: str) -> Upsert:
    options = library.Options(raw_mode=True)
    options.create_if_missing(True)
    base = library.Rdict(directory, options)

    def upsert(batch: pa.RecordBatch) -> None:
        """Rows as flat bytes, made outside of Python's loop: what is measured is the store."""
        packed = _packed(batch)
        together = library.WriteBatch(raw_mode=True)
        for key, value in packed:
            together.put(key, value)
        base.write(together)

    for part in _parts(rows):
        upsert(part)
    return upsert


def _packed(batch: pa.RecordBatch) -> list[tuple[bytes, bytes]]:
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
