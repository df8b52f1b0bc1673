"""Kills servers of a real cluster at random times under a workload; no acknowledged write may be lost.

One cycle: wait for further operations of the workload, `kill -9` one master, one tablet server that leads
a tablet, or both; acknowledgements must resume on every tablet while they are down; start them again,
and wait until `nyala cluster ksck` finds no problem.

python -m tests.cluster.kill_cycles --cycles 100 --minutes 60 --seed 1
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

from nyala.common.partitioning.partition import locate
from nyala.testing import MiniCluster
from tests.cluster.support.ksck import wait_equal, wait_ksck
from tests.cluster.support.workload import SCHEMA, Workload, create, rows
from tests.waiting import wait_until

TABLE = "kills"
OPTIONS = {"flush_bytes": "65536", "flush_log_bytes": "65536", "wal_segment_mb": "1"}
"""Options with a flush and a new segment about every second, so that kills interrupt them."""
RESUME_S = 60.0
"""Seconds within which acknowledgements must resume. The gap is printed; this limit only ends a stuck run."""


@dataclass
class KillCycles:
    """Kills on one cluster under one workload.

    Attributes:
        cluster: three masters and three tablet servers.
        random: draws servers and times.
        kills: processes killed.
        gaps_s: seconds from a kill to acknowledged writes on every tablet.
    """

    cluster: MiniCluster
    random: random.Random
    kills: int = 0
    gaps_s: list[float] = field(default_factory=list)

    def cycle(self, workload: Workload) -> None:
        """Kill servers, wait for acknowledgements, start the servers again, wait for a healthy cluster."""
        goal = workload.acknowledged + self.random.randrange(5, 150)
        self._until(
            workload, lambda: workload.acknowledged >= goal, "further operations are acknowledged"
        )
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
        """Write to every tablet with a new client; return when all writes are acknowledged."""
        with self.cluster.connect(int(RESUME_S * 1000)) as client:
            table = client.table(TABLE)
            numbers = list(range(64))
            partition = client.describe(TABLE).partition
            keys = pa.RecordBatch.from_pydict(
                {"owner": ["probe"] * 64, "n": pa.array(numbers, pa.int64())},
                schema=pa.schema([SCHEMA.field("owner"), SCHEMA.field("n")]),
            )
            _, firsts = np.unique(locate(table.definition, partition, keys), return_index=True)
            assert len(firsts) == partition.count, "the probe has no key of some tablet"
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
    """Result of a run that passed all checks."""

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
    """Run cycles until their number or the time is reached. The data stays in `folder` if one is given."""
    began = time.monotonic()
    with MiniCluster(dir=folder, options=OPTIONS) as cluster:
        with cluster.connect() as client:
            create(client, TABLE)
        kills, done = KillCycles(cluster, random.Random(seed)), 0
        with Workload(cluster.connect, TABLE, seed) as workload:
            while done < cycles and time.monotonic() < end:
                kills.cycle(workload)
                done += 1
                say(
                    f"cycle {done}: {kills.kills} kills, {workload.acknowledged} acknowledged, "
                    f"gap {kills.gaps_s[-1]:.2f} s"
                )
        workload.check()
        wait_ksck(cluster)
        found = kills.verify_on_every_pair(workload)
        wait_equal(cluster)
        seconds = time.monotonic() - began
        return Outcome(seed, done, kills.kills, workload.acknowledged, found, kills.gaps_s, seconds)


def main() -> int:
    """Run the command line; an error ends it with a traceback and the seed."""
    parser = argparse.ArgumentParser(prog="./run soak kills", description=__doc__)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument(
        "--dir", help="folder of the data, which is kept; without it a temporary one"
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
