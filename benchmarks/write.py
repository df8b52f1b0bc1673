"""Bulk insert and random upsert through a client, 3 replicas beside 1, synced beside unsynced."""

import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl

import nyala
from benchmarks.report import Report, disk_bytes
from benchmarks.wide import SCHEMA, rows
from nyala.testing import MiniCluster

ROWS, BATCH, TABLETS = 400_000, 10_000, 8


def _load(masters: str, table: str, keys: np.ndarray, op: str, threads: int) -> float:
    """Write keys with several client threads; return rows per second."""
    parts = np.array_split(keys, threads)
    batches = [[rows(p[i : i + BATCH], i) for i in range(0, len(p), BATCH)] for p in parts]
    clients = [nyala.connect(masters) for _ in parts]
    tables = [c.table(table) for c in clients]

    def work(number: int) -> None:
        for batch in batches[number]:
            getattr(tables[number], op)(batch).raise_for_errors()

    began = time.perf_counter()
    running = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    rate = len(keys) / (time.perf_counter() - began)
    for client in clients:
        client.close()
    return rate


def _create(masters: str, name: str, replicas: int) -> None:
    with nyala.connect(masters) as client:
        hashed = nyala.Partition(hash=[nyala.Hash(["k"], TABLETS)])
        client.create_table(name, SCHEMA, ["k"], hashed, replicas)


def _raw_flight(batch: pa.RecordBatch, count: int) -> float:
    """Return rows per second of a C++ Flight server that drops its input: the limit of the network layer."""

    class Sink(fl.FlightServerBase):
        def do_put(self, context, descriptor, reader, writer):
            for _ in reader:
                pass

    server = Sink("grpc://127.0.0.1:0")
    client = fl.connect(f"grpc://127.0.0.1:{server.port}")
    began = time.perf_counter()
    writer, _ = client.do_put(fl.FlightDescriptor.for_path("x"), batch.schema)
    for _ in range(count):
        writer.write_batch(batch)
    writer.close()
    rate = batch.num_rows * count / (time.perf_counter() - began)
    server.shutdown()
    return rate


def run() -> Report:
    """Run the benchmark."""
    about = (
        f"{ROWS:,} wide rows, {TABLETS} tablets, batches of {BATCH:,}, client on the same machine"
    )
    report = Report("write", about)
    keys = np.random.default_rng(7).permutation(ROWS).astype(np.int64)
    again = np.random.default_rng(8).integers(0, ROWS, ROWS)
    wire = _raw_flight(rows(keys[:BATCH], 1), 40)
    report.add("raw Flight put into nothing (C++)", wire, "rows/s", "the wire alone = 1")
    rates: dict[str, float] = {}
    for sync in ("always", "never"):
        with MiniCluster(options={"wal_sync": sync}) as cluster:
            for replicas in (3, 1):
                name = f"t{replicas}"
                _create(cluster.masters, name, replicas)
                for op, what, threads in (
                    ("insert", keys, 1), ("upsert", again, 1),
                    ("insert", keys + ROWS, 4), ("upsert", again, 4),
                ):  # fmt: skip
                    label = f"{op}, {replicas} replicas, sync {sync}, {threads} sessions"
                    rates[label] = _load(cluster.masters, name, what, op, threads)
                    first = rates["insert, 3 replicas, sync always, 1 sessions"]
                    report.add(
                        label, rates[label], "rows/s", f"{rates[label] / first:.2f}x of the first"
                    )
            if sync == "always":
                size = disk_bytes(cluster.dir)
                report.add("disk, all servers, WAL included", size / 1e6, "MB")
    return report
