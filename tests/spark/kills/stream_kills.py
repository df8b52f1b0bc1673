"""Kills -9 under a stream from one table to another: no change may be lost, doubled or out of order.

One cycle: wait until the copy has further rows, kill the driver, the Python processes of the executor, a
tablet server or the leader master, and start again what was killed. A query that has ended by an error is
started again too, from its checkpoint. In local mode the JVM of the driver is the executor.

python -m tests.spark.kills.stream_kills --restarts 100 --minutes 120 --seed 1
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

import nyala
from nyala.client.client import Client
from nyala.client.table import Table
from nyala.testing import MiniCluster
from tests.spark.kills.stream_job import COPY, SOURCE
from tests.waiting import wait_until

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
VICTIMS = ("driver", "executor", "tablet server", "leader master")
HOT = 5
"""Number of keys, below 0, that every batch changes; all other keys are written once."""
BATCH, ADVANCE = 20, 60
WAIT_S = 600


class Writes(threading.Thread):
    """Writes new keys, and the next value of each hot key, until it is stopped."""

    def __init__(self, table: Table) -> None:
        super().__init__(daemon=True)
        self._table = table
        self._stopping = threading.Event()
        self.keys = self.batches = 0

    def run(self) -> None:
        """Write batch after batch."""
        while not self._stopping.is_set():
            new = range(self.keys, self.keys + BATCH)
            rows = [{"k": k, "v": 0} for k in new]
            rows += [{"k": -1 - n, "v": self.batches} for n in range(HOT)]
            self._table.upsert(rows).raise_for_errors()
            self.keys, self.batches = self.keys + BATCH, self.batches + 1
            self._stopping.wait(0.2)

    def stop(self) -> None:
        """End after the present batch."""
        self._stopping.set()
        self.join()


@dataclass
class Query:
    """The process of the query, started again when it has ended.

    Attributes:
        masters: addresses.
        folder: has the checkpoint and the log.
        starts: how often it was started.
    """

    masters: str
    folder: Path
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def ensure(self) -> None:
        """Start the process unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self.starts += 1
        with (self.folder / "driver.log").open("ab") as log:
            point = str(self.folder / "checkpoint")
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.kills.stream_job", self.masters, point],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """Kill the driver, its JVM and its Python processes."""
        assert self._process is not None, "not started"
        for pid in [*self._children(), self._process.pid]:
            _kill(pid)
        self._process.wait()

    def kill_executor(self) -> int:
        """Kill the Python processes that run tasks; return how many there were."""
        found = [p for p in self._children() if b"pyspark.daemon" in _read(p, "cmdline")]
        for pid in found:
            _kill(pid)
        return len(found)

    def _children(self) -> list[int]:
        """Return the processes that the driver has started, and theirs."""
        assert self._process is not None, "not started"
        parents = defaultdict(list)
        for name in os.listdir("/proc"):
            if name.isdigit() and (stat := _read(int(name), "stat")):
                parents[int(stat.rpartition(b")")[2].split()[1])].append(int(name))
        found = list(parents[self._process.pid])
        for pid in found:
            found.extend(parents[pid])
        return found


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class StreamKills:
    """A cluster, a writer, and a query that copies what is written.

    Args:
        cluster: three masters and three tablet servers.
        client: of the cluster.
        folder: for checkpoint and log.
        seed: decides victims.
    """

    def __init__(self, cluster: MiniCluster, client: Client, folder: Path, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self.began = client.now()
        parts = nyala.Partition(hash=[nyala.Hash(["k"], 3)])
        self._source = client.create_table(SOURCE, SCHEMA, ["k"], parts)
        self._copy = client.create_table(COPY, SCHEMA, ["k"], parts)
        self.query = Query(cluster.masters, folder)
        self._writes = Writes(self._source)
        self.kills = 0

    def run(self, restarts: int, minutes: float) -> None:
        """Kill and start again, then check the copy.

        Args:
            restarts: number of kills.
            minutes: no further kill after this time.
        """
        end = time.monotonic() + minutes * 60
        self._writes.start()
        self.query.ensure()
        order = list(VICTIMS)
        self._random.shuffle(order)
        try:
            while self.kills < restarts and time.monotonic() < end:
                self._advance()
                self._cycle(order[self.kills % len(order)])
            self._writes.stop()
            self.check()
        finally:
            self._writes.stop()
            self.query.kill()

    def _advance(self) -> None:
        goal = self._copy.count() + ADVANCE + self._random.randrange(5 * BATCH)

        def further() -> bool:
            self.query.ensure()
            return self._copy.count() >= goal

        wait_until(further, "the copy has further rows", timeout_s=WAIT_S)

    def _cycle(self, victim: str) -> None:
        self.kills += 1
        print(f"kill {self.kills}: {victim}", flush=True)
        if victim == "driver":
            self.query.kill()
        elif victim == "executor":
            self.query.kill_executor()
        else:
            tservers = [n for n in self._cluster.names if n.startswith("t")]
            leader = victim == "leader master"
            name = self._cluster.leader_master() if leader else self._random.choice(tservers)
            self._cluster.kill(name)
            self._cluster.start(name)
        self.query.ensure()

    def check(self) -> None:
        """Wait until the copy has all rows; each change must be there once, in the order of its key."""
        wanted = self._rows(self._source)

        def equal() -> bool:
            self.query.ensure()
            return self._rows(self._copy) == wanted

        wait_until(equal, "the copy equals the source", timeout_s=WAIT_S)
        assert len(wanted) == self._writes.keys + HOT, "the source lacks rows"
        versions = defaultdict(list)
        for row in self._copy.changes(self.began, net=False).to_arrow().to_pylist():
            versions[row["k"]].append((row["_timestamp"], row["v"], row["_op"]))
        for key, found in versions.items():
            values = [v for _, v, _ in sorted(found)]
            assert values == sorted(set(values)), (
                f"key {key} has a change twice, or in wrong order: {found}"
            )
            assert key < 0 or [op for _, _, op in found] == ["insert"], (key, found)

    def _rows(self, table: Table) -> dict[int, int]:
        return {r["k"]: r["v"] for r in table.scan().to_arrow().to_pylist()}


def run(restarts: int, minutes: float, seed: int) -> None:
    """Run cycles on a new cluster.

    Args:
        restarts: number of kills.
        minutes: no further kill after this time.
        seed: decides victims.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        MiniCluster() as cluster,
        cluster.connect() as client,
    ):
        kills = StreamKills(cluster, client, Path(folder), seed)
        kills.run(restarts, minutes)
        print(f"{kills.kills} kills, {kills.query.starts} starts of the query: 0 lost, 0 doubled")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    run(given.restarts, given.minutes, given.seed)


if __name__ == "__main__":
    main()
