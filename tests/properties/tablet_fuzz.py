"""A thousand random operations on a tablet of five keys; a failure is reported as the shortest list found.

    python -m tests.properties.tablet_fuzz [--seed N] [--runs R] [--minutes M] [--operations 1000]

Each operation is the name of a step (tablet_steps.py) and the seed of its details, so that a list of
them is a complete test; a failing list is shortened by removing operations.
"""

import argparse
import random
import sys
import time
import traceback
from collections.abc import Sequence

from nyala.common.schema import Schema
from tests.properties.support import tablet_steps as steps
from tests.properties.support.tablet_rows import weak_hash
from tests.properties.support.tablet_world import World, sizes
from tests.unit.tablet.support.tablet_support import INT_KEY, PAIR_KEY

Operation = tuple[str, int]
SCHEMAS: dict[str, Schema | None] = {"any": None, "int": INT_KEY, "pair": PAIR_KEY}
RARE = set(steps.FAILING)
SHORTENING_S = 120


def draw(seed: int, count: int) -> list[Operation]:
    """Return the operations of a seed: writes twice as often as maintenance, failures half as often."""
    chance = random.Random(seed)
    names = [*steps.WRITING, *steps.WRITING, *steps.FILING, *steps.READING]
    names += [n for n in steps.FAILING if chance.random() < 0.5] or list(steps.FAILING)
    return [(chance.choice(names), chance.randrange(1 << 32)) for _ in range(count)]


def world(seed: int) -> World:
    """Return the tablet of a seed: three of nine have colliding hashes, every second one small blocks."""
    schema = list(SCHEMAS.values())[seed % len(SCHEMAS)]
    return World(seed, schema, weak_hash if seed // len(SCHEMAS) % 3 == 0 else None)


def problem(seed: int, operations: Sequence[Operation]) -> tuple[int, str] | None:
    """Run operations; return the index and the error of the one that failed, or None."""
    with sizes(small=seed % 2 == 0):
        at = world(seed)
        for number, (name, details) in enumerate(operations):
            try:
                steps.run(at, name, details)
            except Exception:  # any error is a finding
                return number, f"operation {number + 1}, {name}:\n{traceback.format_exc()}"
    return None


def shortest(seed: int, operations: Sequence[Operation], seconds: float) -> list[Operation]:
    """Remove operations that a failure does not need: all after it, halves, then smaller parts."""
    kept, size = list(operations), max(1, len(operations) // 2)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        at = 0
        before = len(kept)
        while at < len(kept) and time.monotonic() < end:
            tried = kept[:at] + kept[at + size :]
            found = problem(seed, tried)
            if found is not None:
                kept = tried[: found[0] + 1]
            else:
                at += size
        if size == 1 and len(kept) == before:
            break
        size = max(1, size // 2)
    return kept


def run(seed: int, count: int, seconds: float = SHORTENING_S) -> str | None:
    """Run one seed; return a report of its failure, or None."""
    operations = draw(seed, count)
    found = problem(seed, operations)
    if found is None:
        return None
    kept = shortest(seed, operations[: found[0] + 1], seconds)
    found = problem(seed, kept) or found
    listed = "".join(f"    ({name!r}, {details}),\n" for name, details in kept)
    return (
        f"{found[1]}\nthe shortest list found, for a test of its own:\n"
        f"({seed}, [\n{listed}])\n"
        f"again: ./run py -m tests.properties.tablet_fuzz --seed {seed} --operations {count}"
    )


def main() -> int:
    """Run seeds until one fails, or the number of runs or the time is reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--operations", type=int, default=1000)
    asked = parser.parse_args()
    end = time.monotonic() + 60 * asked.minutes
    done = 0
    for seed in range(asked.seed, asked.seed + asked.runs):
        if time.monotonic() > end:
            break
        report = run(seed, asked.operations)
        if report is not None:
            print(report)
            return 1
        done += 1
    print(
        f"fuzz of the tablet: {done} runs of {asked.operations} operations of {len(steps.STEPS)} kinds"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
