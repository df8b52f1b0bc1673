"""Monotonic time, without the imports of `env.clock`: the moment at which a command begins."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock: on Linux one that also advances while the machine is suspended, so that leases end meanwhile."""
_began_us: ContextVar[int | None] = ContextVar("began_us", default=None)


def monotonic_us() -> int:
    """Return the microseconds from an arbitrary start; never decreases."""
    return time.clock_gettime_ns(_CLOCK) // 1000


@contextmanager
def command() -> Iterator[None]:
    """Note that a command of the user begins here, with the imports that it needs."""
    token = _began_us.set(monotonic_us())
    try:
        yield
    finally:
        _began_us.reset(token)


def began_us() -> int:
    """Return the monotonic time at which the present command began; without one: now."""
    return _began_us.get() or monotonic_us()
