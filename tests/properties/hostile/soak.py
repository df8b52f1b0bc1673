"""Hostile inputs of many seeds, `./run soak hostile`: runs the tests of this folder with each of them."""

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

INPUTS = 9_500
"""Inputs of one run of the tests, about; those to servers on virtual time are half of them."""
CLUSTER = "tests/cluster/access/test_hostile.py"
MEMORY_MB = 1_500
"""Bound on the resident memory of each process of a run: that of the tests, and of each server."""


def main() -> int:
    """Run the tests until the number of inputs or the time is reached; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    end, runs, failed = time.monotonic() + asked.minutes * 60, 0, 0
    folder = str(Path(__file__).parent)
    while runs * INPUTS < asked.inputs and time.monotonic() < end:
        environ = {**os.environ, "HOSTILE_SEED": f"{asked.seed + 100 * runs}"}
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "2",
            folder,
            *([CLUSTER] if not runs else []),
        ]
        failed += subprocess.run(words, env=environ, check=False).returncode != 0
        runs += 1
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    print(
        f"hostile: {runs * INPUTS} inputs, seeds {asked.seed} on, {failed} of {runs} runs failed, "
        f"the largest process had {largest} MiB of memory, of {MEMORY_MB}"
    )
    return 1 if failed or largest > MEMORY_MB else 0


if __name__ == "__main__":
    sys.exit(main())
