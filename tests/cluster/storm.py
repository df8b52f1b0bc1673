"""Kills servers of a real cluster at random moments of a workload; nothing acknowledged may be lost.

One cycle: wait until the workload has done some more, `kill -9` one master, one tablet server that leads
something, or both; acknowledgements must resume on every tablet while they are down; start them again,
and wait until `nyala cluster ksck` finds nothing.

python -m tests.cluster.storm --cycles 100 --minutes 60 --seed 1
"""

import argparse
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.common.errors import NyalaError
from nyala.common.partition import locate
from nyala.operate.ksck import ClusterHealth, check
from nyala.operate.ksck_checksum import compare
from nyala.testing import MiniCluster
from tests.cluster.support.workload import SCHEMA, Workload, create, rows
from tests.waiting import wait_until

TABLE = "storm"
OPTIONS = {"flush_bytes": "65536", "flush_log_bytes": "65536", "wal_segment_mb": "1"}
"""Flushes and new segments every second or so: kills meet them."""
RESUME_S = 60.0
"""Acknowledgements have to resume in this time; a figure is printed, this only ends a dead run."""


def ksck(cluster: MiniCluster) -> ClusterHealth:
    """Return the findings of `nyala cluster ksck`."""
    connection = Connection(cluster.masters, ClientOptions(timeout_ms=30_000))
    try:
        return connection.run(check(connection.core))
    finally:
        connection.close()


def wait_ksck(cluster: MiniCluster, timeout_s: float = 120) -> ClusterHealth:
    """Wait until `ksck` finds no problem."""
    last = ["never answered"]

    def good() -> ClusterHealth | None:
        try:
            health = ksck(cluster)
        except NyalaError as err:
            last[0] = err.message
            return None
        last[0] = "; ".join(health.problems)
        return None if health.problems else health

    try:
        return wait_until(good, "a healthy cluster", timeout_s, poll_s=0.2)
    except AssertionError as err:
        raise AssertionError(f"{err}: {last[0]}") from None


def wait_equal(cluster: MiniCluster, timeout_s: float = 120) -> None:
    """Wait until `ksck --checksum` finds no problem: at the end of a test, every replica holds the same."""
    wait_ksck(cluster, timeout_s)
    connection = Connection(cluster.masters, ClientOptions(timeout_ms=30_000))
    last = ["never answered"]

    def equal() -> bool:
        try:
            _, last[:] = connection.run(compare(connection.core, int(timeout_s * 1000)))
        except NyalaError as err:
            last[:] = [err.message]
        assert not any("its replicas differ" in problem for problem in last), last
        return not last

    try:
        wait_until(equal, "equal replicas", timeout_s, poll_s=0.2)
    except AssertionError as err:
        raise AssertionError(f"{err}: {last}") from None
    finally:
        connection.close()


@dataclass
class Storm:
    """Kills on one cluster under one workload.

    Attributes:
        cluster: three masters and three tablet servers.
        random: draws servers and moments.
        kills: processes killed.
        gaps_s: seconds from a kill to acknowledged writes on every tablet.
    """

    cluster: MiniCluster
    random: random.Random
    kills: int = 0
    gaps_s: list[float] = field(default_factory=list)

    def cycle(self, workload: Workload) -> None:
        """Kill, see acknowledgements resume, start again, wait until healthy."""
        goal = workload.acknowledged + self.random.randrange(5, 150)
        self._until(workload, lambda: workload.acknowledged >= goal, "the workload goes on")
        victims = self.victims()
        began = time.monotonic()
        for victim in victims:
            self.cluster.kill(victim)
            self.kills += 1
        self.probe()
        self.gaps_s.append(time.monotonic() - began)
        after = {w: w.acknowledged for w in workload.workers}
        self._until(
            workload,
            lambda: all(w.acknowledged > n for w, n in after.items()),
            "every worker has an acknowledgement after the kill",
        )
        for victim in victims:
            self.cluster.start(victim, wait=False)
        wait_ksck(self.cluster)
        workload.check()

    def _until(self, workload: Workload, condition, what: str) -> None:
        def holds() -> bool:
            workload.check()
            return bool(condition())

        wait_until(holds, what, RESUME_S)

    def victims(self) -> list[str]:
        """Draw the servers to kill: the leader master, any master, a leading tablet server, or both."""
        leading = sorted(set(wait_until(lambda: self.cluster.leaders(TABLE), "a leader").values()))
        tserver = leading[int(self.random.random() * len(leading))]  # draws once, however many lead
        master = self.random.choice(
            [self.cluster.leader_master(), f"master-{self.random.randrange(3)}"]
        )
        return self.random.choice([[tserver], [master], [master, tserver], [tserver]])

    def probe(self) -> None:
        """Write to every tablet with a new client; returns when all have acknowledged."""
        with self.cluster.connect(int(RESUME_S * 1000)) as client:
            table = client.table(TABLE)
            numbers = list(range(64))
            partition = client.describe(TABLE).partition
            keys = pa.RecordBatch.from_pydict(
                {"owner": ["probe"] * 64, "n": pa.array(numbers, pa.int64())},
                schema=pa.schema([SCHEMA.field("owner"), SCHEMA.field("n")]),
            )
            _, firsts = np.unique(locate(table.definition, partition, keys), return_index=True)
            assert len(firsts) == partition.count, "the probe misses a tablet"
            chosen = [numbers[i] for i in firsts]
            table.upsert(rows("probe", chosen, [self.kills] * len(chosen))).raise_for_errors()

    def verify_on_every_pair(self, workload: Workload) -> int:
        """Kill each tablet server in turn; the other two must have the whole table."""
        found = 0
        for victim in ("tserver-0", "tserver-1", "tserver-2"):
            self.cluster.kill(victim)
            self.kills += 1
            with self.cluster.connect() as client:
                found = workload.verify(client.table(TABLE).scan().to_arrow())
            self.cluster.start(victim, wait=False)
            wait_ksck(self.cluster)
        return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a storm that passed all checks."""

    seed: int
    cycles: int
    kills: int
    acknowledged: int
    rows: int
    gaps_s: list[float]
    seconds: float

    def __str__(self) -> str:
        gaps = sorted(self.gaps_s)
        return (
            f"kills: seed {self.seed}, {self.cycles} cycles, {self.kills} kills, {self.acknowledged} "
            f"operations acknowledged, {self.rows} rows compared on every pair of servers, 0 lost, 0 "
            f"duplicated; write gap median {gaps[len(gaps) // 2]:.2f} s, longest {gaps[-1]:.2f} s; "
            f"{self.seconds:.0f} s"
        )


def run(
    cycles: int,
    seed: int,
    end: float = float("inf"),
    say=lambda text: None,
    folder: str | None = None,
) -> Outcome:
    """Run a whole storm. The data stays in `folder` if one is given."""
    began = time.monotonic()
    with MiniCluster(dir=folder, options=OPTIONS) as cluster:
        with cluster.connect() as client:
            create(client, TABLE)
        storm, done = Storm(cluster, random.Random(seed)), 0
        with Workload(cluster.connect, TABLE, seed) as workload:
            while done < cycles and time.monotonic() < end:
                storm.cycle(workload)
                done += 1
                say(
                    f"cycle {done}: {storm.kills} kills, {workload.acknowledged} acknowledged, "
                    f"gap {storm.gaps_s[-1]:.2f} s"
                )
        workload.check()
        wait_ksck(cluster)
        found = storm.verify_on_every_pair(workload)
        wait_equal(cluster)
        seconds = time.monotonic() - began
        return Outcome(seed, done, storm.kills, workload.acknowledged, found, storm.gaps_s, seconds)


def main() -> int:
    """Run the command line; an error ends it with a traceback and the seed."""
    parser = argparse.ArgumentParser(prog="./run soak kills", description=__doc__)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument(
        "--dir", help="where the data goes and stays; a temporary folder if not given"
    )
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    end = time.monotonic() + 60 * given.minutes
    outcome = run(given.cycles, given.seed, end, lambda text: print(text, flush=True), given.dir)
    root = Path(__file__).parents[2]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    print(f"{outcome}; commit {commit.stdout.strip() or 'unknown'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
