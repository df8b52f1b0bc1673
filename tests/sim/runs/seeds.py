"""Options of the programs that run seeds one after the other, and the seeds that they ask for."""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator

LONGEST_MINUTES = 24 * 60.0
"""Limit of a run with a number of simulated hours, and without one of minutes."""


def parser(text: str | None, seconds: float) -> argparse.ArgumentParser:
    """Return the options that all of these programs have.

    Args:
        text: docstring of the program.
        seconds: virtual time of a seed, unless the user gives another one.
    """
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("--seed", type=int, default=1, help="the first; the only one without a size")
    made.add_argument("--minutes", type=float, default=0, help="go on with further seeds so long")
    made.add_argument("--hours", type=float, default=0, help="or until so many simulated hours")
    made.add_argument("--seconds", type=float, default=seconds, help="virtual time under faults")
    made.add_argument("--workers", type=int, default=1, help="processes")
    return made


def seeds(given: argparse.Namespace, counted_s: Callable[[], float]) -> Iterator[int]:
    """Yield seeds until the minutes are over or the simulated hours are counted; without both, one.

    Args:
        given: options of `parser`.
        counted_s: returns the simulated seconds that are counted so far.
    """
    minutes = given.minutes or (LONGEST_MINUTES if given.hours else 0)
    end = time.monotonic() + 60 * minutes
    for seed in itertools.count(given.seed):
        yield seed
        if time.monotonic() >= end or (given.hours and counted_s() >= 3600 * given.hours):
            return
