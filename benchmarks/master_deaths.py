"""Servers killed with kill -9: time without definitions, and time until all replicas exist again."""

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

import nyala
from benchmarks.groups import Processes
from benchmarks.kudu_cluster import Kudu
from benchmarks.master_tables import COLUMNS
from benchmarks.report import Report
from nyala.common.errors import NyalaError
from nyala.testing import MiniCluster

DDL_GAP_S = 1.2
KUDU_DDL_GAP_S = 1.4
"""Kudu's recorded figure on such a machine, used where Kudu is not given."""
BEFORE_KILL_S = 1.5
WATCHED_S = 7.0
STALE_MS = 5_000
REPAIR_OPTIONS = {"member_failed_after_ms": "2000", "repair_interval_ms": "200"}
REPAIRED_TABLETS = 24
ROW_BYTES = 208
LIMIT_S = 180.0


class Gaps(threading.Thread):
    """Repeats one call, and records the longest time between two successful calls.

    Args:
        work: the call; a `NyalaError` counts as a failed call.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._ended = threading.Event()
        self.longest_s = 0.0
        self.done = 0

    def run(self) -> None:
        """Call until stopped."""
        last = time.perf_counter()
        while not self._ended.is_set():
            try:
                self._work()
            except NyalaError:
                continue
            now = time.perf_counter()
            self.longest_s = max(self.longest_s, now - last)
            last = now
            self.done += 1

    def end(self) -> None:
        """Stop after the call in progress."""
        self._ended.set()
        self.join(60)


def definitions(report: Report, cluster: MiniCluster, kudu: Kudu | None, kills: int) -> None:
    """Add the time without definitions after the leader master is killed, in nyala and Kudu in turn."""
    with cluster.connect() as client:
        table = client.create_table("defined", COLUMNS, ["k"])
        if kudu is not None:
            kudu.order("many", "defined", 3)
        own_gaps, looks, kudu_gaps, looked = [], [], [], 0
        for number in range(kills):
            gap, look, count = _killed(cluster, table, number)
            own_gaps.append(gap)
            looks.append(look)
            looked += count
            if kudu is not None:
                kudu_gaps.append(_killed_kudu(kudu))
    if kudu_gaps:
        report.add(
            f"leader master killed {kills} times, Kudu: no definition for, median",
            statistics.median(kudu_gaps), "s", f"{min(kudu_gaps):.2f} to {max(kudu_gaps):.2f}",
        )  # fmt: skip
    beside = statistics.median(kudu_gaps) if kudu_gaps else KUDU_DDL_GAP_S
    found = statistics.median(own_gaps)
    report.add(
        f"leader master killed {kills} times: no definition for, median", found, "s",
        f"{min(own_gaps):.2f} to {max(own_gaps):.2f}; {found / beside:.2f}x of Kudu's {beside:.2f}",
        at_most=min(DDL_GAP_S, beside),
    )  # fmt: skip
    report.add(
        f"meanwhile, look-ups of at most {STALE_MS / 1000:.0f} s of age: longest gap",
        max(looks), "s", f"{looked} look-ups", at_most=0.5,
    )  # fmt: skip


def _killed(cluster: MiniCluster, table: nyala.Table, number: int) -> tuple[float, float, int]:
    """Kill the leader master; return the longest gap of definitions, that of look-ups, and their number."""
    owners = iter(range(10**9))
    defining = Gaps(lambda: table.alter().set_owner(f"owner{number}.{next(owners)}").commit())
    with cluster.connect() as other:
        looking = Gaps(lambda: other.describe("defined", max_age_ms=STALE_MS))
        defining.start()
        looking.start()
        time.sleep(BEFORE_KILL_S)
        victim = cluster.leader_master()
        cluster.kill(victim)
        time.sleep(WATCHED_S - BEFORE_KILL_S)
        defining.end()
        looking.end()
    cluster.start(victim)
    if not defining.done or not looking.done:
        raise RuntimeError("no definition or no look-up succeeded")
    return defining.longest_s, looking.longest_s, looking.done


def _killed_kudu(kudu: Kudu) -> float:
    """Kill Kudu's leader master while its client defines; return the longest gap."""
    victim = kudu.leader_master()
    timer = threading.Timer(BEFORE_KILL_S, kudu.kill_master, [victim])
    timer.start()
    longest, _ = kudu.order("owners", "defined", int(WATCHED_S * 1000))
    timer.join()
    kudu.start_master(victim)
    return longest


def repaired(report: Report, size_mb: int) -> None:
    """Add the time until all replicas of a dead server are rebuilt on others."""
    with MiniCluster(tservers=4, options=REPAIR_OPTIONS) as cluster, cluster.connect() as client:
        by_key = nyala.Partition(hash=[nyala.Hash(["k"], REPAIRED_TABLETS)])
        schema = pa.schema([("k", pa.int64()), ("t", pa.string())])
        table = client.create_table("repaired", schema, ["k"], by_key)
        for batch in _rows(size_mb * 1_000_000 // ROW_BYTES):
            table.upsert(batch).raise_for_errors()
        victim = Processes(cluster).names[0]
        dead = cluster.address(victim)
        replicas = _replicas_at(table, dead)
        stored = sum(
            f.stat().st_size for f in Path(cluster.data_dir(victim)).rglob("*") if f.is_file()
        )
        cluster.kill(victim)
        began = time.perf_counter()
        while not _all_repaired(table, dead):
            if time.perf_counter() > began + LIMIT_S:
                raise TimeoutError(f"{_replicas_at(table, dead)} replicas are not repaired")
            time.sleep(0.1)
        took = time.perf_counter() - began
    waited = int(REPAIR_OPTIONS["member_failed_after_ms"]) / 1000
    moved = size_mb * replicas / REPAIRED_TABLETS
    report.add(
        f"a dead server's {replicas} replicas of {moved:.0f} MB are elsewhere after", took, "s",
        f"{waited:.0f} s of them until it counts as dead; {moved / max(0.1, took - waited):.1f} MB/s; "
        f"its folder had {stored / 1e6:.0f} MB",
    )  # fmt: skip


def _rows(count: int) -> list[pa.RecordBatch]:
    rng = np.random.default_rng(1)
    batches = []
    for first in range(0, count, 20_000):
        keys = np.arange(first, min(first + 20_000, count), dtype=np.int64)
        raw = rng.integers(32, 127, len(keys) * 200, dtype=np.uint8).tobytes().decode()
        texts = [raw[200 * n : 200 * n + 200] for n in range(len(keys))]
        batches.append(pa.record_batch({"k": keys, "t": pa.array(texts, pa.string())}))
    return batches


def _replicas_at(table: nyala.Table, address: str) -> int:
    """Return the number of tablets with a member at an address."""
    return sum(any(a == address for _, a in p.replicas) for p in table.tablets())


def _all_repaired(table: nyala.Table, dead: str) -> bool:
    """Return True if every tablet has three voters, none of them at this address."""
    return all(
        len(p.replicas) == 3 and all(a != dead for _, a in p.replicas) for p in table.tablets()
    )
