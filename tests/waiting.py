"""Waiting for a condition with a deadline, the only waits of tests in real time.

On a machine that is so many times slower than the reference machine (scripts/test.py) deadlines are later.
A test that waits for processes waits at least two minutes before it fails.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.005
_SLOWER = float(os.environ.get("TESTS_SLOWER", "1"))
SHORTEST_S, LONGEST_S = 120, 1_200
"""Seconds that a wait for processes lasts at least before it fails, and at most on a slow machine."""


def later(seconds: float) -> float:
    """Return the limit of what takes far less than `seconds` on the reference machine."""
    return max(seconds, min(seconds * _SLOWER, LONGEST_S))


def within(seconds: float) -> float:
    """Return the limit of a wait for another process: `later`, and two minutes at least."""
    return later(max(seconds, SHORTEST_S))


async def eventually(condition: Callable[[], object], what: str, timeout_s: float = 30) -> None:
    """Return once `condition()` is true; fail with `what` if it is not in time."""
    end = time.monotonic() + later(timeout_s)
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {later(timeout_s):.0f} s: {what}")
        tick = asyncio.Event()
        asyncio.get_running_loop().call_later(_POLL_S, tick.set)
        await tick.wait()


def wait_until(
    condition: Callable[[], T | None], what: str, timeout_s: float = 120, poll_s: float = 0.02
) -> T:
    """Return the result of `condition()` once it is true; fail with `what` if it is not in time.

    The counterpart of `eventually` for tests that run no loop: they wait for processes.
    """
    limit_s = within(timeout_s)
    end, pause = time.monotonic() + limit_s, threading.Event()
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s:.0f} s: {what}")
        pause.wait(poll_s)
    return found
