"""The longest gap between acknowledged writes when a leader is killed with kill -9."""

import statistics
import threading
import time

import pyarrow as pa

import nyala
from benchmarks.report import Report
from nyala.testing import MiniCluster

KINDS = {"tablet server that leads": 20, "leader master": 5}
"""Number of kills of each leader."""


class Prober(threading.Thread):
    """Writes one row at a time to every key and records each acknowledgement."""

    def __init__(self, masters: str, keys: int) -> None:
        super().__init__(daemon=True)
        self._table = nyala.connect(masters).table("t")
        self._keys = keys
        self.stop = threading.Event()
        self.last = [time.perf_counter()] * keys
        self.gap = [0.0] * keys

    def run(self) -> None:
        """Write until stopped."""
        number = 0
        while not self.stop.is_set():
            key = number % self._keys
            self._table.upsert([{"k": key, "v": number}])
            now = time.perf_counter()
            self.gap[key] = max(self.gap[key], now - self.last[key])
            self.last[key] = now
            number += 1

    def reset(self) -> None:
        """Start a new measurement."""
        self.gap = [0.0] * self._keys


def run() -> Report:
    """Run the benchmark."""
    report = Report("failover", "3 masters, 3 tablet servers, 4 tablets, kill -9, synced")
    with MiniCluster() as cluster, nyala.connect(cluster.masters) as client:
        client.create_table(
            "t", pa.schema([("k", pa.int64()), ("v", pa.int64())]), ["k"],
            nyala.Partition(hash=[nyala.Hash(["k"], 4)]),
        )  # fmt: skip
        prober = Prober(cluster.masters, 16)
        prober.start()
        for kind, kills in KINDS.items():
            gaps = []
            for _ in range(kills):
                victim = (
                    cluster.leader_master()
                    if kind == "leader master"
                    else next(iter(cluster.leaders("t").values()))
                )
                prober.reset()
                cluster.kill(victim)
                began = time.perf_counter()
                while min(prober.last) < began and time.perf_counter() < began + 60:
                    time.sleep(0.01)
                gaps.append(max(prober.gap))
                cluster.start(victim)
            report.add(
                f"{kind} killed {kills} times: median write gap", statistics.median(gaps), "s",
                f"worst {max(gaps):.2f} s, best {min(gaps):.2f} s",
            )  # fmt: skip
        prober.stop.set()
        prober.join()
    return report
