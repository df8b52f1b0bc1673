"""Random generators of simulated runs, which a salt draws anew (docs/internals/simulator.md)."""

import os
import random

SALT = os.environ.get("TESTS_SALT", "")
"""Added to the name of each generator; empty: each recorded seed has its recorded schedule."""
REPEAT = f"TESTS_SALT={SALT} " if SALT else ""
"""The first words of a command that repeats a run."""


def generator(name: int | str) -> random.Random:
    """Return the generator of a name: another one with each salt."""
    return random.Random(f"{name}/{SALT}" if SALT else name)
