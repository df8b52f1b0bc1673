"""Transactions: their time beside plain writes, the waits of others while one commits, jobs and streams.

`--rows N` is the number of rows of the large transaction and of the jobs, `--decisions N` the number of
transactions after which the masters' catalog is measured.
"""

import asyncio
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

import nyala
from benchmarks import transaction_catalog, transaction_jobs
from benchmarks.report import Report, disk_bytes
from nyala.client.client import Client
from nyala.client.table import Table
from nyala.testing import MiniCluster

ROWS, DECISIONS = 2_000_000, 10_000
QUICK_ROWS, QUICK_DECISIONS = 40_000, 300
CATALOG, QUICK_CATALOG = transaction_catalog.DECISIONS, 3_000
TABLETS, ROOM = 8, 1 << 40
"""Number of tablets, each a range of `ROOM` keys."""
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("text", pa.string())])
SMALL, BATCH, THREADS = 10, 10_000, 16
LONGEST_S, P99_MS = 0.3, 50


def rows(first: int, count: int, tablets: int = TABLETS) -> pa.RecordBatch:
    """Return rows whose keys are spread evenly over the first tablets.

    Args:
        first: number of the first row.
        count: number of rows.
        tablets: number of tablets.
    """
    numbers = range(first, first + count)
    keys = [n % tablets * ROOM + n for n in numbers]
    texts = [f"row {n}" for n in numbers]
    return pa.RecordBatch.from_arrays(
        [pa.array(keys), pa.array(numbers), pa.array(texts)], schema=SCHEMA
    )


def create(client: Client, name: str) -> Table:
    """Create a table of `TABLETS` ranges."""
    bounds = [(n * ROOM, (n + 1) * ROOM) for n in range(TABLETS)]
    return client.create_table(
        name, SCHEMA, ["k"], nyala.Partition(range=nyala.Range(["k"], bounds))
    )


class Waits:
    """Latencies of a client that makes one call after the other while something else happens.

    Args:
        masters: addresses.
        table: name of the table.
        call: one call; gets the table and a number.
    """

    def __init__(self, masters: str, table: str, call: Callable[[Table, int], object]) -> None:
        self._client = nyala.connect(masters)
        self._table = self._client.table(table)
        self._call = call
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.took: list[float] = []

    def __enter__(self) -> "Waits":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            began = time.perf_counter()
            self._call(self._table, number)
            self.took.append(time.perf_counter() - began)
            number += 1

    @property
    def p99_ms(self) -> float:
        """99th percentile of the latencies, in milliseconds."""
        return sorted(self.took)[len(self.took) * 99 // 100] * 1000


def _write_one(table: Table, number: int) -> None:
    table.upsert(rows(number, 1)).raise_for_errors()


def _read_one(table: Table, number: int) -> None:
    table.get({"k": number % TABLETS * ROOM + number})


@contextmanager
def _others(masters: str, table: str) -> Iterator[tuple[Waits, Waits]]:
    """Run a writer and a reader of single rows in all tablets of a table."""
    with Waits(masters, table, _write_one) as writer, Waits(masters, table, _read_one) as reader:
        yield writer, reader


def _median_ms(call: Callable[[int], object], count: int) -> float:
    took = []
    for number in range(count):
        began = time.perf_counter()
        call(number)
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1000


def _small(report: Report, client: Client, table: Table, count: int) -> None:
    """Measure transactions of a few rows beside plain writes of the same rows."""
    for tablets in (1, 2, TABLETS):

        def plain(number: int, tablets: int = tablets) -> None:
            table.upsert(rows(number * SMALL, SMALL, tablets)).raise_for_errors()

        def transaction(number: int, tablets: int = tablets) -> None:
            with client.transaction() as txn:
                table.upsert(rows(number * SMALL, SMALL, tablets), txn=txn)

        _median_ms(plain, 3), _median_ms(transaction, 3)
        alone, whole = _median_ms(plain, count), _median_ms(transaction, count)
        report.add(f"plain write of {SMALL} rows in {tablets} tablets, median", alone, "ms")
        report.add(
            f"transaction of {SMALL} rows in {tablets} tablets, median", whole, "ms",
            f"{whole / alone:.2f}x of the plain write",
        )  # fmt: skip


def _waits(report: Report, masters: str, client: Client, table: Table, count: int) -> None:
    """Measure what others wait while small transactions commit one after the other."""
    with _others(masters, table.name) as (writer, reader):
        time.sleep(max(1, count / 50))
    alone = {"write": writer.p99_ms, "look-up": reader.p99_ms}
    with _others(masters, table.name) as (writer, reader):
        for number in range(count):
            with client.transaction() as txn:
                table.upsert(rows(number * SMALL, SMALL), txn=txn)
    for name, waits in (("write", writer), ("look-up", reader)):
        p99 = waits.p99_ms
        ratio = f"{p99 / alone[name]:.1f}x of that without transactions"
        what = f"{name} of one row beside transactions of {SMALL} rows"
        report.add(f"{what}, p50", statistics.median(waits.took) * 1000, "ms")
        report.add(f"{what}, p99", p99, "ms", ratio, at_most=P99_MS)


def _large(report: Report, masters: str, client: Client, table: Table, count: int) -> None:
    """Measure what others wait while a large transaction commits, then while all rows are replaced."""
    for name, replaced in (("transaction", False), ("overwrite", True)):
        txn = client.transaction()
        if replaced:
            table.delete_where("true", txn=txn)
        for first in range(0, count, BATCH):
            table.upsert(rows(first, min(BATCH, count - first)), txn=txn).raise_for_errors()
        with _others(masters, table.name) as (writer, reader):
            time.sleep(1)
            began = time.perf_counter()
            txn.commit()
            took = time.perf_counter() - began
            time.sleep(1)
        what = f"{name} of {count:,} rows in {TABLETS} tablets"
        report.add(f"{what}: commit", took, "s")
        for kind, waits in (("write", writer), ("look-up", reader)):
            report.add(f"{what}: longest {kind}", max(waits.took), "s", at_most=LONGEST_S)


def _catalog(
    report: Report, cluster: MiniCluster, client: Client, table: Table, count: int
) -> None:
    """Measure what the masters keep after many decisions."""
    masters = [n for n in cluster.names if n.startswith("m")]
    before = disk_bytes(cluster.data_dir(masters[0]))
    left, lock = iter(range(count)), threading.Lock()

    def work() -> None:
        rng = random.Random(threading.get_ident())
        while True:
            with lock:
                if next(left, None) is None:
                    return
            with client.transaction() as txn:
                table.upsert(rows(rng.randrange(1 << 20), 1), txn=txn)

    began = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    report.add(f"transactions of one row, {THREADS} at once", count / took, "1/s")
    size = disk_bytes(cluster.data_dir(masters[0]))
    each = f"{(size - before) / count:,.0f} bytes a decision, the log included"
    report.add(f"a master's files after {count:,} decisions", size / 1e6, "MB", each)


def run(quick: bool = False, rows: int = 0, decisions: int = 0) -> Report:
    """Run the benchmark.

    Args:
        quick: with few rows and decisions.
        rows: number of rows of large transactions and jobs; 0: the default.
        decisions: number of transactions before the catalog is measured; 0: the default.
    """
    count = rows or (QUICK_ROWS if quick else ROWS)
    decided = decisions or (QUICK_DECISIONS if quick else DECISIONS)
    tries = 20 if quick else 300
    about = f"3 masters, 3 tablet servers, {TABLETS} tablets, synced, all on one machine"
    report = Report("transactions", about)
    staged = {"txn_stage_bytes": str(4 << 30), "txn_stage_total_bytes": str(16 << 30)}
    with MiniCluster(options=staged) as cluster, cluster.connect() as client:
        table = create(client, "t")
        _small(report, client, table, tries)
        _waits(report, cluster.masters, client, table, tries)
        _large(report, cluster.masters, client, table, count)
        _catalog(report, cluster, client, table, decided)
        asyncio.run(transaction_catalog.measure(report, QUICK_CATALOG if quick else CATALOG))
        transaction_jobs.measure(report, client, cluster.masters, count)
    return report
