"""The whole way beside the real Kudu: client, leader, two followers, acknowledgement; and back, to Arrow.

3 replicas, 8 tablets, one client process, both clusters fresh in each round and one at a time. Ours syncs its
log; Kudu runs as it comes, without. `--kudu FOLDER` names Kudu (`kudu_cluster.py`); without it, what it
did once on such a machine stands in its place, marked as recorded.
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
"""Of Kudu 1.18.0 on a machine with 2 cores that had nothing else to do."""
TARGETS: Mapping[str, float] = {NEW: 3, EXISTING: 3, INSERT: 1, SCAN: 10, GET: 0.5, GET8: 1}
"""Times Kudu's rate in the same run."""

Rates = dict[str, float]


def run(*, quick: bool = False) -> Report:
    """Run it: five rounds, or a single one."""
    found = kudu_cluster.programs()
    rounds = QUICK_ROUNDS if quick else ROUNDS
    about = (
        f"{ROWS:,} wide rows, {TABLETS} tablets, 3 replicas, ours synced, Kudu not; {rounds} rounds"
    )
    report = Report("kudu", about)
    ours: list[Rates] = []
    theirs: list[Rates] = []
    for number in range(rounds):
        ours.append(_ours(number))
        _tell(number, "nyala", ours[-1])
        if found is not None:
            theirs.append(_kudu(found, number))
            _tell(number, "Kudu", theirs[-1])
    for work, target in TARGETS.items():
        _add(report, work, target, [o[work] for o in ours], [t[work] for t in theirs])
    return report


def _tell(number: int, who: str, rates: Rates) -> None:
    """Show a round at once: all of them take minutes."""
    told = "; ".join(f"{work}: {rate:,.0f}" for work, rate in rates.items())
    print(f"round {number + 1}, {who}: {told}", file=sys.stderr, flush=True)


def _add(report: Report, work: str, target: float, ours: list[float], theirs: list[float]) -> None:
    """Add a line for each side: medians, and the ratio's median and spread."""
    unit = "gets/s" if work in (GET, GET8) else "rows/s"
    report.add(f"{work}: nyala", statistics.median(ours), unit, _spread(ours))
    if theirs:
        report.add(f"{work}: Kudu", statistics.median(theirs), unit, _spread(theirs))
        ratios = [o / t for o, t in zip(ours, theirs, strict=True)]
    else:
        report.add(f"{work}: Kudu, RECORDED elsewhere", RECORDED[work], unit)
        ratios = [o / RECORDED[work] for o in ours]
    report.add(
        f"{work}: ratio", statistics.median(ratios), "x",
        f"{min(ratios):.2f} to {max(ratios):.2f}", at_least=target,
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


# ---- ours ----------------------------------------------------------------------------------------------


def _ours(number: int) -> Rates:
    rng = np.random.default_rng(number)
    new = rows(rng.permutation(ROWS).astype(np.int64), number)
    changed = rows(rng.integers(0, ROWS, CHANGED).astype(np.int64), number + 100)
    with MiniCluster() as cluster, nyala.connect(cluster.masters) as client:
        create = client.create_table
        by_k = nyala.Partition(hash=[nyala.Hash(["k"], TABLETS)])
        create("warm", SCHEMA, ["k"], by_k).upsert(new.slice(0, WARM)).raise_for_errors()
        table = create("t", SCHEMA, ["k"], by_k)
        rates = {NEW: _rate(ROWS, lambda: table.upsert(new).raise_for_errors())}
        rates[EXISTING] = _rate(CHANGED, lambda: table.upsert(changed).raise_for_errors())
        table.scan().to_arrow()
        rates[SCAN] = _rate(ROWS, lambda: table.scan().to_arrow())
        rates |= _gets(table)
        by_key = nyala.Partition(hash=[nyala.Hash(["key"], TABLETS)])
        loaded = create("l", _generated(0, 1).schema, ["key"], by_key)
        parts = [_generated(n * LOADED, LOADED) for n in range(LOADERS)]
        rates[INSERT] = _rate(
            LOADERS * LOADED,
            lambda: _in_threads(LOADERS, lambda n: loaded.insert(parts[n]).raise_for_errors()),
        )
        counted = table.count(), loaded.count()
        if counted != (ROWS, LOADERS * LOADED):
            raise RuntimeError(f"{counted} rows are there after the round")
    return rates


def _gets(table: nyala.Table) -> Rates:
    keys = np.random.default_rng(5).integers(0, ROWS, (GETTERS + 1, max(GETS, GETS_EACH))).tolist()
    missed: list[int] = []

    def work(thread: int, count: int) -> None:
        for key in keys[thread][:count]:
            if table.get({"k": key}) is None:
                missed.append(key)

    work(GETTERS, GETS // 10)
    rates = {GET: _rate(GETS, lambda: work(GETTERS, GETS))}
    each = GETS_EACH
    rates[GET8] = _rate(
        GETTERS * each, lambda: _in_threads(GETTERS, lambda thread: work(thread, each))
    )
    if missed:
        raise RuntimeError(f"{len(missed)} keys were not found")
    return rates


def _generated(first: int, count: int) -> pa.RecordBatch:
    """Return rows as Kudu's load generator makes them: int64 key, int32, string of 32; keys in order."""
    keys = np.arange(first, first + count, dtype=np.int64)
    texts = [f"{n:032d}" for n in range(first, first + count)]
    return pa.record_batch(
        {"key": keys, "int_val": keys.astype(np.int32), "string_val": pa.array(texts, pa.string())}
    )


# ---- Kudu ----------------------------------------------------------------------------------------------


def _kudu(found: kudu_cluster.Programs, number: int) -> Rates:
    with kudu_cluster.Kudu(found) as kudu:
        kudu.order("create", "warm")
        kudu.order("upsert", "warm", WARM, 0, 1)
        kudu.order("create", "t")
        rates = {NEW: ROWS / kudu.order("upsert", "t", ROWS, 0, number)[0]}
        rates[EXISTING] = CHANGED / kudu.order("upsert", "t", CHANGED, ROWS, number + 100)[0]
        kudu.order("scan", "t")
        took, scanned, _ = kudu.order("scan", "t")
        if scanned != ROWS:
            raise RuntimeError(f"Kudu scanned {scanned} rows")
        rates[SCAN] = ROWS / took
        kudu.order("get", "t", GETS // 2, ROWS, 1)
        rates[GET] = GETS / kudu.order("get", "t", GETS, ROWS, 1)[0]
        rates[GET8] = GETTERS * GETS_EACH / kudu.order("get", "t", GETS_EACH, ROWS, GETTERS)[0]
        rates[INSERT] = kudu.load(LOADERS, LOADED)
    return rates
