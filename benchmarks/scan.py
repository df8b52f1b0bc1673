"""Scans to Arrow beside a raw Flight read of the same rows; look-ups and one-row writes."""

import statistics
import time
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

import nyala
from benchmarks.report import Report
from benchmarks.wide import SCHEMA, rows
from nyala.testing import MiniCluster

ROWS, BATCH, TABLETS, SMALL = 1_000_000, 20_000, 8, 500
ROUNDS = 5


def _raw_flight(table: pa.Table) -> float:
    class Source(fl.FlightServerBase):
        def do_get(self, context, ticket):
            return fl.RecordBatchStream(table)

    server = Source("grpc://127.0.0.1:0")
    client = fl.connect(f"grpc://127.0.0.1:{server.port}")
    began = time.perf_counter()
    read = client.do_get(fl.Ticket(b"x")).read_all()
    rate = read.num_rows / (time.perf_counter() - began)
    server.shutdown()
    return rate


def _add_streams(report: Report, table: nyala.Table) -> None:
    """Add the rates of streams that keep no rows, each the median of some rounds in turn."""
    ways: dict[str, Callable[[], Iterable[pa.RecordBatch]]] = {
        "to_batches, one tablet after the other": lambda: (
            batch for token in table.scan().tokens() for batch in token.to_batches()
        ),
        "to_batches, tablets side by side": lambda: table.scan().to_batches(),
        "to_batches, merged by key": lambda: table.scan(order=True).to_batches(),
    }
    rates: dict[str, list[float]] = {label: [] for label in ways}
    for _ in range(ROUNDS):
        for label, way in ways.items():
            began = time.perf_counter()
            read = sum(batch.num_rows for batch in way())
            rates[label].append(read / (time.perf_counter() - began))
    first = 0.0
    for label, found in rates.items():
        rate = statistics.median(found)
        first = first or rate
        report.add(label, rate, "rows/s", f"{rate / first:.2f}x of one after the other")


def run() -> Report:
    """Run the benchmark."""
    report = Report("scan", f"{ROWS:,} wide rows, {TABLETS} tablets, 3 replicas, synced")
    with MiniCluster() as cluster, nyala.connect(cluster.masters) as client:
        table = client.create_table(
            "t", SCHEMA, ["k"], nyala.Partition(hash=[nyala.Hash(["k"], TABLETS)])
        )
        keys = np.random.default_rng(7).permutation(ROWS).astype(np.int64)
        for at in range(0, ROWS, BATCH):
            table.insert(rows(keys[at : at + BATCH], at)).raise_for_errors()
        read = table.scan().to_arrow()
        wire = _raw_flight(read)
        report.add("raw Flight get of the same rows (C++)", wire, "rows/s", "the wire alone = 1")
        for label, scan in (
            ("scan, all columns", table.scan()),
            ("scan, 3 of 9 columns", table.scan(columns=["k", "i0", "d0"])),
            ("scan, one row in a hundred", table.scan(where="d0 < 0.01")),
        ):
            began = time.perf_counter()
            scan.to_arrow()
            rate = ROWS / (time.perf_counter() - began)
            report.add(label, rate, "rows/s", f"{rate / wire:.2f}x of the wire")
        _add_streams(report, table)
        began = time.perf_counter()
        counted = table.count()
        report.add("count", counted / (time.perf_counter() - began), "rows/s")
        for label, work in (
            ("look-up by key, one at a time", lambda k: table.get({"k": int(k)})),
            (
                "acknowledged upsert, one row at a time",
                lambda k: table.upsert(rows(np.array([k]), 1)),
            ),
        ):
            began = time.perf_counter()
            for k in keys[:SMALL]:
                work(k)
            report.add(label, SMALL / (time.perf_counter() - began), "ops/s")
    return report
