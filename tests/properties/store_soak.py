"""Full size of the tablet's checks, run in parallel within a time: `./run soak store`.

    python -m tests.properties.store_soak [--minutes M] [--seed N]

10,000 sequences of the machine, the operation fuzz, 100,000 where texts and 5,000 examples of each property
of keys and predicates; what does not fit into the time is omitted, and the last line reports the counts.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

SEQUENCES = 10_000
SLICE = 500  # sequences of one process, all machines together
MACHINES = 4
FUZZ_RUNS = 300
FUZZ_SLICE = 20
WHERE_TEXTS = 100_000
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=3000")


class Failed(Exception):
    """A part has failed."""


def call(*command: str, **environ: str) -> str:
    """Run a command; print its output if it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environ}
    )
    if done.returncode:
        print(done.stdout, done.stderr, flush=True)
        raise Failed(" ".join(command))
    return done.stdout


def sequences(seed: int, end: float) -> str:
    """Run slices of the model test's sequences, each with its own seed."""
    count = 0
    while count < SEQUENCES and time.monotonic() < end:
        each = {"STORE_SEQUENCES": str(SLICE // MACHINES), "HYPOTHESIS_PROFILE": "nightly"}
        number = f"--hypothesis-seed={seed + count}"
        call(*PYTEST, number, "tests/properties/test_tablet_model.py", **each)
        count += SLICE
    return f"{count} sequences"


def fuzz(seed: int, end: float) -> str:
    """Fuzz runs of a thousand operations."""
    count = 0
    while count < FUZZ_RUNS and (left := (end - time.monotonic()) / 60) > 0:
        size = ("--seed", f"{seed + count}", "--runs", f"{FUZZ_SLICE}", "--minutes", f"{left}")
        output = call(sys.executable, "-m", "tests.properties.tablet_fuzz", *size)
        count += _number(r"(\d+) runs", output)
    return f"{count} runs of 1000 operations"


def where(seed: int, end: float) -> str:
    """Fuzz texts that may not be expressions."""
    left = max(0.0, (end - time.monotonic()) / 60)
    size = ("--seed", f"{seed}", "--inputs", f"{WHERE_TEXTS}", "--minutes", f"{left}")
    output = call(sys.executable, "-m", "tests.properties.where_fuzz", *size)
    judged = _number(r"(\d+) texts", output)
    return f"{judged} where texts"


def common(seed: int, end: float) -> str:
    """Run the properties of keys and predicates with the number of examples of the profile."""
    if time.monotonic() > end:
        return "no keys and predicates"
    files = ("tests/properties/test_common_keys.py", "tests/properties/test_common_predicates.py")
    call(*PYTEST, f"--hypothesis-seed={seed}", *files, HYPOTHESIS_PROFILE="nightly")
    return "keys and predicates"


def _number(pattern: str, output: str) -> int:
    found = re.search(pattern, output)
    assert found, output
    return int(found[1])


def main() -> int:
    """Run all parts in two threads; return 1 if any has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    began, whole = time.monotonic(), 60 * asked.minutes

    def line(*parts: tuple[Callable[[int, float], str], float]) -> list[str]:
        return [part(asked.seed, began + whole * share) for part, share in parts]

    with ThreadPoolExecutor(2) as pool:
        lines = [
            pool.submit(line, (sequences, 0.95)),
            pool.submit(line, (where, 0.3), (common, 0.4), (fuzz, 0.95)),
        ]
        failures = [str(e) for e in (done.exception() for done in lines) if e is not None]
    done = [output for one in lines if one.exception() is None for output in one.result()]
    print("store: " + ", ".join(done + [f"FAILED: {f}" for f in failures]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
