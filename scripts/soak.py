"""Full-size runs of what `./run test` runs reduced: `./run soak NAME [--minutes M] [--seed N]`.

The last line has name, result, commit and seed; it belongs into docs/internals/soak.md.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable

PY = sys.executable


def kills(minutes: float, seed: int) -> list[str]:
    """100 cycles of kill -9 on real processes, or as many as fit."""
    return [
        PY,
        "-m",
        "tests.cluster.kill_cycles",
        "--cycles",
        "100",
        "--minutes",
        f"{minutes}",
        "--seed",
        f"{seed}",
    ]


def sim(minutes: float, seed: int) -> list[str]:
    """Ten simulated hours under load of the replica engine over its log, or as many as fit."""
    size = ["--hours", "10", "--minutes", f"{minutes}", "--seconds", "60", "--workers", "2"]
    return [
        PY,
        "-m",
        "tests.sim.runs.run",
        "--level",
        "host",
        "--quiet",
        "--seed",
        f"{seed}",
        *size,
    ]


def store(minutes: float, seed: int) -> list[str]:
    """10,000 sequences of the tablet's model test, 300 fuzz runs, 100,000 where texts, or as many as fit."""
    size = ["--minutes", f"{minutes}", "--seed", f"{seed}"]
    return [PY, "-m", "tests.properties.store_soak", *size]


def ddl(minutes: float, seed: int) -> list[str]:
    """Five simulated hours of definitions under faults, or as many as fit."""
    size = ["--hours", "5", "--minutes", f"{minutes}", "--seed", f"{seed}", "--workers", "2"]
    return [PY, "-m", "tests.sim.runs.ddl_run", *size]


def ranges(minutes: float, seed: int) -> list[str]:
    """Ranges added and dropped under readers and writers, simulated, as many seeds as fit."""
    size = ["--minutes", f"{minutes}", "--seed", f"{seed}", "--workers", "2"]
    return [PY, "-m", "tests.sim.runs.ranges_run", *size]


def journals(minutes: float, seed: int) -> list[str]:
    """Three simulated hours of journals under faults, moves and definitions, or as many as fit."""
    size = ["--hours", "3", "--minutes", f"{minutes}", "--seed", f"{seed}", "--workers", "2"]
    return [PY, "-m", "tests.sim.journals.journal_run", *size]


def coordinator(minutes: float, seed: int) -> list[str]:
    """200 kills and pauses of real coordinators, servers and journal leaders, or as many as fit."""
    size = ["--kills", "200", "--minutes", f"{minutes}", "--seed", f"{seed}"]
    return [PY, "-m", "tests.cluster.ensemble_kills", *size]


def ensembles(minutes: float, seed: int) -> list[str]:
    """Three simulated hours of coordinators and servers of ensembles under faults, or as many as fit."""
    size = ["--hours", "3", "--minutes", f"{minutes}", "--seed", f"{seed}", "--workers", "2"]
    return [PY, "-m", "tests.sim.ensembles.run", "--quiet", *size]


def masters(minutes: float, seed: int) -> list[str]:
    """100 leader masters killed in the middle of definitions, on real processes, or as many as fit."""
    size = ["--kills", "100", "--minutes", f"{minutes}", "--seed", f"{seed}"]
    return [PY, "-m", "tests.cluster.ddl_kills", *size]


def model(minutes: float, seed: int) -> list[str]:
    """Every state of the core within small bounds, which determine its size."""
    return [PY, "-m", "tests.model.run"]


def faults(minutes: float, seed: int) -> list[str]:
    """30 power cuts, kills and stops, partitions and disk errors each; 300 power cuts of the log."""
    each = f"{minutes / 5}"
    return [PY, "-m", "tests.faults.soak", "--minutes", each, "--seed", f"{seed}"]


def pins(minutes: float, seed: int) -> list[str]:
    """One simulated hour with a permanently dead server, 50 groups and steady writes; it takes no seed."""
    return [PY, "-m", "tests.unit.replica.anchors_soak", "--seconds", "3600"]


def streams(minutes: float, seed: int) -> list[str]:
    """10 GB written, read and followed by a process whose memory may not exceed 1 GB; less in less time."""
    size = ["--megabytes", f"{min(10_000, int(minutes * 60))}", "--limit-mb", "1000", "--follow"]
    return [PY, "-m", "tests.cluster.stream_memory", *size, "--seed", f"{seed}"]


def stream_restarts(minutes: float, seed: int) -> list[str]:
    """100 kills of a stream's driver and executor, tablet servers and leader masters, or as many as fit."""
    size = ["--restarts", "100", "--minutes", f"{minutes}", "--seed", f"{seed}"]
    return [PY, "-m", "tests.spark.kills.stream_kills", *size]


def bank(minutes: float, seed: int) -> list[str]:
    """Five simulated hours of transfers by transactions under faults and alterations, or as many as fit."""
    size = ["--hours", "5", "--minutes", f"{minutes}", "--seed", f"{seed}", "--workers", "2"]
    return [PY, "-m", "tests.sim.transactions.run", *size]


def transactions(minutes: float, seed: int) -> list[str]:
    """Random worlds of the transaction protocol, as many as fit; then explorations."""
    states = f"{min(20_000, int(minutes * 500))}"
    size = ["--minutes", f"{minutes}", "--seed", f"{seed}", "--states", states]
    return [PY, "-m", "tests.model.transactions.run", *size]


def hostile(minutes: float, seed: int) -> list[str]:
    """100,000 hostile inputs to methods and ports, or as many as fit."""
    size = ["--minutes", f"{minutes}", "--seed", f"{seed}"]
    return [PY, "-m", "tests.properties.hostile.soak", *size]


NAMES: dict[str, Callable[[float, int], list[str]]] = {
    "bank": bank,
    "coordinator": coordinator,
    "ddl": ddl,
    "ensembles": ensembles,
    "ranges": ranges,
    "faults": faults,
    "hostile": hostile,
    "journals": journals,
    "kills": kills,
    "masters": masters,
    "model": model,
    "pins": pins,
    "sim": sim,
    "store": store,
    "stream_restarts": stream_restarts,
    "streams": streams,
    "transactions": transactions,
}


def main() -> int:
    """Run one soak; return its exit status."""
    parser = argparse.ArgumentParser(prog="./run soak", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    asked = parser.parse_args()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    environ = {**os.environ, "HYPOTHESIS_PROFILE": "nightly"}
    began = time.monotonic()
    status = subprocess.run(
        NAMES[asked.name](asked.minutes, asked.seed), env=environ, check=False
    ).returncode
    spent = (time.monotonic() - began) / 60
    word = "held" if status == 0 else "FAILED"
    print(f"soak {asked.name}: {word} after {spent:.1f} min, commit {commit}, seed {asked.seed}")
    return status


if __name__ == "__main__":
    sys.exit(main())
