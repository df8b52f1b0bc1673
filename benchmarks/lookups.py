"""Look-ups of one key with and without the read lease: two clusters in turn, in one run."""

import statistics
import threading
import time

import numpy as np
import pyarrow as pa

import nyala
from benchmarks.report import Report
from nyala.testing import MiniCluster

ROWS, TABLETS = 10_000, 4
SECONDS = 2.0
ROUNDS = 5
THREADS = (1, 8)
LEASES_MS = (0, 100)


def _table(client: nyala.Client) -> nyala.Table:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = client.create_table(
        "t", schema, ["k"], nyala.Partition(hash=[nyala.Hash(["k"], TABLETS)])
    )
    keys = np.arange(ROWS)
    table.insert(pa.table({"k": keys, "v": keys})).raise_for_errors()
    return table


def _rate(table: nyala.Table, threads: int, seed: int) -> float:
    """Return the look-ups per second of some threads."""
    done = [0] * threads
    end = time.perf_counter() + SECONDS

    def work(number: int) -> None:
        keys = np.random.default_rng([seed, number]).integers(0, ROWS, 100_000).tolist()
        for key in keys:
            if time.perf_counter() >= end:
                break
            assert table.get({"k": key}) is not None
            done[number] += 1

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) / SECONDS


def run() -> Report:
    """Run the benchmark."""
    report = Report(
        "lookups", f"{ROWS:,} rows, {TABLETS} tablets, 3 replicas, with and without lease"
    )
    rates: dict[tuple[int, int], list[float]] = {(t, ms): [] for t in THREADS for ms in LEASES_MS}
    clusters = {ms: MiniCluster(masters=1, options={"read_lease_ms": str(ms)}) for ms in LEASES_MS}
    try:
        tables = {ms: _table(nyala.connect(c.masters)) for ms, c in clusters.items()}
        for ms in LEASES_MS:
            _rate(tables[ms], max(THREADS), 0)
        for round_ in range(ROUNDS):
            for threads, ms in rates:
                rates[threads, ms].append(_rate(tables[ms], threads, round_ + 1))
    finally:
        for cluster in clusters.values():
            cluster.close()
    for threads in THREADS:
        by_round = statistics.median(rates[threads, 0])
        for ms in LEASES_MS:
            rate = statistics.median(rates[threads, ms])
            what = f"{threads} threads, " + ("by lease" if ms else "a round each")
            report.add(what, rate, "look-ups/s", f"{rate / by_round:.2f}x of a round each")
    return report
