"""Load generator: inserts generated rows with several threads, and measures."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from nyala.client.client import Client
from nyala.client.scan_token import ScanToken
from nyala.client.table import Table
from nyala.common.partitioning.partition_spec import Hash, Partition
from nyala.env.monotonic import monotonic_us
from nyala.operate.perf.rows import batch_of

PREFIX = "loadgen_auto_"
"""Begin of the names of tables that the generator makes."""
SCHEMA = pa.schema([("key", pa.int64()), ("int_value", pa.int32()), ("string_value", pa.string())])
MOST = (1 << 63) - 1
WAKE_S = 0.2
"""Pause, in seconds, after which a thread that waits for others looks whether it was interrupted.

A signal that arrives just before the wait begins does not end it.
"""
A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Size and shape of the load.

    Attributes:
        threads: writers at a time.
        rows_per_thread: rows of each.
        batch_rows: rows of one call.
        first: number of the first row; each thread has the numbers after those of the thread before it.
        seed: seed of random row numbers; None: they are sequential.
    """

    threads: int
    rows_per_thread: int
    batch_rows: int
    first: int = 0
    seed: int | None = None

    def batches(self, thread: int) -> Iterator[np.ndarray]:
        """Yield the row numbers of each batch of a thread."""
        random = None if self.seed is None else np.random.default_rng([self.seed, thread])
        begin = self.first + thread * self.rows_per_thread
        for at in range(0, self.rows_per_thread, self.batch_rows):
            size = min(self.batch_rows, self.rows_per_thread - at)
            if random is None:
                yield np.arange(begin + at, begin + at + size, dtype=np.int64)
            else:
                yield random.integers(0, MOST, size, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Outcome of the load.

    Attributes:
        rows: inserted.
        errors: rows that had no effect, because their key existed.
        seconds: of all threads together.
        batch_ms: time of a call: the median, and the 99th percentile, in milliseconds.
    """

    rows: int
    errors: int
    seconds: float
    batch_ms: tuple[float, float]

    @property
    def rows_per_s(self) -> int:
        """Rows inserted in a second."""
        return int(self.rows / self.seconds)


@contextmanager
def auto_table(
    client: Client, name: str, *, buckets: int, replicas: int, keep: bool
) -> Iterator[Table]:
    """Create a table for the load, and drop it at the end, also after an error.

    Args:
        client: of the cluster.
        name: of the table, which must not exist.
        buckets: number of its tablets.
        replicas: of each.
        keep: do not drop it.

    Raises:
        AlreadyPresent: there is such a table; nothing was changed.
    """
    parts = Partition(hash=[Hash(["key"], buckets)]) if buckets > 1 else None
    table = client.create_table(name, SCHEMA, ["key"], parts, replicas)
    try:
        yield table
    finally:
        if not keep:
            client.drop_table(name)


def load(table: Table, plan: LoadPlan) -> LoadResult:
    """Insert the rows, and wait for the acknowledgement of all.

    Args:
        table: that gets the rows.
        plan: their number and shape.

    Raises:
        NyalaError: of the first thread that failed; the others end after their current batch.
    """
    failed = threading.Event()

    def write(thread: int) -> tuple[int, int, list[int]]:
        rows = errors = 0
        took: list[int] = []
        try:
            for numbers in plan.batches(thread):
                if failed.is_set():
                    break
                batch = batch_of(table.schema, numbers)
                begin = monotonic_us()
                done = table.insert(batch)
                took.append(monotonic_us() - begin)
                rows, errors = rows + done.rows, errors + done.errors.num_rows
        except BaseException:  # raised again: the other threads must end too
            failed.set()
            raise
        return rows, errors, took

    begin = monotonic_us()
    done = _all_of(plan.threads, write, range(plan.threads), failed)
    seconds = (monotonic_us() - begin) / 1e6
    took = np.array([us for _, _, times in done for us in times]) / 1000
    median, late = np.percentile(took, [50, 99])
    return LoadResult(
        sum(rows for rows, _, _ in done), sum(errors for _, errors, _ in done), seconds,
        (round(float(median), 1), round(float(late), 1)),
    )  # fmt: skip


def _all_of(
    threads: int, work: Callable[[A], T], items: Iterable[A], ended: threading.Event
) -> list[T]:
    """Return what `work` returns for each item; after an error or an interrupt the threads end early.

    Args:
        threads: number of threads.
        work: called in a thread with an item; ends soon if `ended` is set.
        items: of the work.
        ended: set after an error or an interrupt.
    """
    with ThreadPoolExecutor(threads, "nyala-perf") as pool:
        try:
            running = [pool.submit(work, item) for item in items]
            while (seen := wait(running, WAKE_S, FIRST_EXCEPTION)).not_done:
                for one in seen.done:
                    one.result()
            return [one.result() for one in running]
        except BaseException:  # raised again: leaving the pool waits for its threads
            ended.set()
            raise


@dataclass(frozen=True, slots=True)
class ScanResult:
    """Outcome of a measured scan.

    Attributes:
        rows: rows that were read.
        bytes: of their Arrow buffers.
        seconds: of all threads together.
        tokens: pieces that were read.
    """

    rows: int
    bytes: int
    seconds: float
    tokens: int

    @property
    def rows_per_s(self) -> int:
        """Rows read in a second."""
        return int(self.rows / self.seconds)


def scan(
    table: Table, columns: list[str] | None = None, where: str | None = None, threads: int = 2
) -> ScanResult:
    """Read a table, its tablets by several threads, at one snapshot.

    Args:
        table: that is read.
        columns: names; None: all.
        where: condition; None: all rows.
        threads: tablets that are read at a time.
    """
    ended = threading.Event()

    def read(token: ScanToken) -> tuple[int, int]:
        rows = size = 0
        for batch in token.to_batches():
            if ended.is_set():
                break
            rows, size = rows + batch.num_rows, size + batch.nbytes
        return rows, size

    begin = monotonic_us()
    tokens = table.scan(columns, where).tokens()
    done = _all_of(threads, read, tokens, ended)
    seconds = (monotonic_us() - begin) / 1e6
    return ScanResult(sum(r for r, _ in done), sum(b for _, b in done), seconds, len(tokens))
