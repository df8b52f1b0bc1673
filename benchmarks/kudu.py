"""Writes and scans through a whole cluster, beside a real Kudu where given.

3 replicas, 8 tablets, one client process; each round starts a new cluster of one system at a time. nyala
syncs its log; Kudu runs with its default, which does not. `--kudu FOLDER` names Kudu (`kudu_cluster.py`);
without it, figures recorded once on such a machine are used, marked as recorded.
"""

import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

import nyala
from benchmarks import kudu_cluster
from benchmarks.report import Report
from benchmarks.wide import SCHEMA, rows
from nyala.testing import MiniCluster

ROUNDS, QUICK_ROUNDS = 5, 1
ROWS, CHANGED, TABLETS = 1_000_000, 300_000, 8
LOADERS, LOADED = 4, 250_000
GETS, GETS_EACH, GETTERS = 1_000, 500, 8
WARM = 50_000

NEW = "upsert of new keys"
EXISTING = "upsert of random existing keys"
INSERT = "insert of the load generator's rows, 4 threads"
SCAN = "full scan to Arrow, one thread"
GET, GET8 = "get of one key, 1 thread", "get of one key, 8 threads"
RECORDED: Mapping[str, float] = {
    NEW: 229_000, EXISTING: 121_000, INSERT: 525_000, SCAN: 560_000, GET: 4_400, GET8: 7_700,
}  # fmt: skip
"""Rates of Kudu 1.18.0, recorded on an idle machine with 2 cores."""
TARGETS: Mapping[str, float] = {NEW: 3, EXISTING: 3, INSERT: 1, SCAN: 10, GET: 0.5, GET8: 1}
"""Minimum ratio to Kudu's rate in the same run."""
Tell = Callable[[str, float], None]
"""Receives the name of a measurement and its rate."""


class Account:
    """Rates of both systems by round; each is printed when it is measured.

    Args:
        compared: whether Kudu is measured too.
    """

    def __init__(self, *, compared: bool) -> None:
        self.ours: dict[str, list[float]] = {work: [] for work in TARGETS}
        self.theirs: dict[str, list[float]] = {work: [] for work in TARGETS}
        self._compared = compared
        self._began = time.perf_counter()

    def nyala(self, work: str, rate: float) -> None:
        """Add a rate of nyala."""
        self.ours[work].append(rate)
        self._show(f"nyala, {work}: {rate:,.0f}" + ("" if self._compared else self._so_far(work)))

    def kudu(self, work: str, rate: float) -> None:
        """Add a rate of Kudu in the same round."""
        self.theirs[work].append(rate)
        self._show(f"Kudu, {work}: {rate:,.0f}{self._so_far(work)}")

    def ratios(self, work: str) -> list[float]:
        """Return the ratio of each round to Kudu's rate, measured or recorded."""
        kudu_rates = self.theirs[work] or [RECORDED[work]] * len(self.ours[work])
        return [o / t for o, t in zip(self.ours[work], kudu_rates, strict=False)]

    def _so_far(self, work: str) -> str:
        ratios, target = self.ratios(work), TARGETS[work]
        median = statistics.median(ratios)
        text = f"; nyala {ratios[-1]:.2f}x"
        if len(ratios) > 1:
            text += (
                f", in {len(ratios)} rounds {median:.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"
            )
        return f"{text}, >= {target:g}: {'met' if median >= target else 'MISSED'}"

    def _show(self, words: str) -> None:
        print(f"{time.perf_counter() - self._began:4.0f} s  {words}", file=sys.stderr, flush=True)


def run(*, quick: bool = False) -> Report:
    """Run the benchmark in five rounds, or in a single one."""
    found = kudu_cluster.programs()
    rounds = QUICK_ROUNDS if quick else ROUNDS
    about = (
        f"{ROWS:,} wide rows, {TABLETS} tablets, 3 replicas, ours synced, Kudu not; {rounds} rounds"
    )
    account = Account(compared=found is not None)
    for number in range(rounds):
        _ours(number, account.nyala)
        if found is not None:
            _kudu(found, number, account.kudu)
    report = Report("kudu", about)
    for work in TARGETS:
        _add(report, work, account)
    return report


def _add(report: Report, work: str, account: Account) -> None:
    """Add a line for each system: medians, and the ratio's median and spread."""
    unit = "gets/s" if work in (GET, GET8) else "rows/s"
    own_rates, kudu_rates, ratios = account.ours[work], account.theirs[work], account.ratios(work)
    report.add(f"{work}: nyala", statistics.median(own_rates), unit, _spread(own_rates))
    if kudu_rates:
        report.add(f"{work}: Kudu", statistics.median(kudu_rates), unit, _spread(kudu_rates))
    else:
        report.add(f"{work}: Kudu, RECORDED elsewhere", RECORDED[work], unit)
    report.add(
        f"{work}: ratio", statistics.median(ratios), "x",
        f"{min(ratios):.2f} to {max(ratios):.2f}", at_least=TARGETS[work],
    )  # fmt: skip


def _spread(figures: list[float]) -> str:
    return f"{min(figures):,.0f} to {max(figures):,.0f}"


def _rate(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def _in_threads(count: int, work: Callable[[int], object]) -> None:
    running = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


# ---- nyala ---------------------------------------------------------------------------------------------


def _ours(number: int, tell: Tell) -> None:
    rng = np.random.default_rng(number)
    new = rows(rng.permutation(ROWS).astype(np.int64), number)
    changed = rows(rng.integers(0, ROWS, CHANGED).astype(np.int64), number + 100)
    with MiniCluster() as cluster, nyala.connect(cluster.masters) as client:
        create = client.create_table
        by_k = nyala.Partition(hash=[nyala.Hash(["k"], TABLETS)])
        create("warm", SCHEMA, ["k"], by_k).upsert(new.slice(0, WARM)).raise_for_errors()
        table = create("t", SCHEMA, ["k"], by_k)
        tell(NEW, _rate(ROWS, lambda: table.upsert(new).raise_for_errors()))
        tell(EXISTING, _rate(CHANGED, lambda: table.upsert(changed).raise_for_errors()))
        table.scan().to_arrow()
        tell(SCAN, _rate(ROWS, lambda: table.scan().to_arrow()))
        _gets(table, tell)
        by_key = nyala.Partition(hash=[nyala.Hash(["key"], TABLETS)])
        loaded = create("l", _generated(0, 1).schema, ["key"], by_key)
        parts = [_generated(n * LOADED, LOADED) for n in range(LOADERS)]

        def load(thread: int) -> None:
            loaded.insert(parts[thread]).raise_for_errors()

        tell(INSERT, _rate(LOADERS * LOADED, lambda: _in_threads(LOADERS, load)))
        counted = table.count(), loaded.count()
        if counted != (ROWS, LOADERS * LOADED):
            raise RuntimeError(f"{counted} rows exist after the round")


def _gets(table: nyala.Table, tell: Tell) -> None:
    keys = np.random.default_rng(5).integers(0, ROWS, (GETTERS + 1, max(GETS, GETS_EACH))).tolist()
    missed: list[int] = []

    def work(thread: int, count: int) -> None:
        for key in keys[thread][:count]:
            if table.get({"k": key}) is None:
                missed.append(key)

    work(GETTERS, GETS // 2)  # as many as the Java client looks up
    tell(GET, _rate(GETS, lambda: work(GETTERS, GETS)))
    each = GETS_EACH
    tell(
        GET8, _rate(GETTERS * each, lambda: _in_threads(GETTERS, lambda thread: work(thread, each)))
    )
    if missed:
        raise RuntimeError(f"{len(missed)} keys were not found")


def _generated(first: int, count: int) -> pa.RecordBatch:
    """Return rows as Kudu's load generator makes them: int64 key, int32, string of 32; keys in order."""
    keys = np.arange(first, first + count, dtype=np.int64)
    texts = [f"{n:032d}" for n in range(first, first + count)]
    return pa.record_batch(
        {"key": keys, "int_val": keys.astype(np.int32), "string_val": pa.array(texts, pa.string())}
    )


# ---- Kudu ----------------------------------------------------------------------------------------------


def _kudu(found: kudu_cluster.Programs, number: int, tell: Tell) -> None:
    with kudu_cluster.Kudu(found) as kudu:
        kudu.order("create", "warm")
        kudu.order("upsert", "warm", WARM, 0, 1)
        kudu.order("create", "t")
        tell(NEW, ROWS / kudu.order("upsert", "t", ROWS, 0, number)[0])
        tell(EXISTING, CHANGED / kudu.order("upsert", "t", CHANGED, ROWS, number + 100)[0])
        kudu.order("scan", "t")
        took, scanned, _ = kudu.order("scan", "t")
        if scanned != ROWS:
            raise RuntimeError(f"Kudu scanned {scanned} rows")
        tell(SCAN, ROWS / took)
        kudu.order("get", "t", GETS // 2, ROWS, 1)
        tell(GET, GETS / kudu.order("get", "t", GETS, ROWS, 1)[0])
        tell(GET8, GETTERS * GETS_EACH / kudu.order("get", "t", GETS_EACH, ROWS, GETTERS)[0])
        tell(INSERT, kudu.load(LOADERS, LOADED))
