"""Monotonic and wall time, the random source, and the hybrid logical clock.

Nothing outside `env/` reads a clock or makes a random number; the simulator has its own `Clock`.
"""

import os
import random
import time
from typing import Protocol
from zlib import crc32

from nyala.common.errors import Corrupt
from nyala.common.hybrid_time import LOGICAL_BITS, LOGICAL_MASK
from nyala.env.files import Files


class Clock(Protocol):
    """Time as one process sees it."""

    def monotonic_us(self) -> int:
        """Microseconds from an arbitrary start; never goes back."""
        ...

    def wall_us(self) -> int:
        """Microseconds since the epoch; may jump either way."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_us(self) -> int:
        """Microseconds from an arbitrary start; never goes back."""
        return time.monotonic_ns() // 1000

    def wall_us(self) -> int:
        """Microseconds since the epoch; may jump either way."""
        return time.time_ns() // 1000


def system_random() -> random.Random:
    """A generator seeded by the operating system."""
    return random.Random(os.urandom(32))


def random_id(rng: random.Random) -> str:
    """A new 32-hex-digit id (tables, tablets, servers, clients)."""
    return f"{rng.getrandbits(128):032x}"


CEILING_STEP_US = 5_000_000
AHEAD_US = 1_000_000
AHEAD_STEP_US = 500_000
"""A restart begins at the ceiling. A clock that is ahead of the wall for that reason hardly moves until
the wall has caught up; a small step keeps many restarts in a row from adding a large one each."""


class HybridClock:
    """A hybrid logical clock whose stamps stay unique and growing across restarts.

    A ceiling is made durable before the clock passes it, and a restart begins above it, so that a
    stamp or a promise ("no later stamp <= T") outlives the process. Runs on the loop only.

    Args:
        clock: wall time.
        files: where the ceiling is kept; None for a client, which promises nothing.
        path: file of the ceiling.

    Attributes:
        failure: why the ceiling could not be saved when that was due last; None: it was.
    """

    def __init__(self, clock: Clock, files: Files | None = None, path: str = "") -> None:
        self._clock = clock
        self._files = files
        self._path = path
        self._last = 0
        self._ceiling = 0
        self.failure: OSError | None = None
        if files is not None and files.exists(path):
            number, _, check = files.read(path).strip().partition(b" ")
            if not number.isdigit() or check != _check(number):
                raise Corrupt(
                    f"{path} should hold the hybrid clock's ceiling and its checksum; without it this server "
                    "could stamp twice, so its replicas have to be replaced"
                )
            files.sync_dir(path.rpartition("/")[0])  # else a power cut undoes what was read
            self._last = self._ceiling = int(number)

    def now(self) -> int:
        """Return a new stamp, above every stamp returned or merged before."""
        physical = self._clock.wall_us() << LOGICAL_BITS
        self._last = max(physical, self._last + 1)
        self._raise_ceiling()
        return self._last

    def peek(self) -> int:
        """Return the clock's reading without taking a stamp: never below any stamp given out."""
        return max(self._clock.wall_us() << LOGICAL_BITS | LOGICAL_MASK, self._last)

    @property
    def seen(self) -> int:
        """The highest stamp given out or merged; 0 before the first."""
        return self._last

    def merge(self, stamp: int) -> None:
        """Move past a stamp seen in a message, so that later stamps are above it."""
        self._last = max(self._last, stamp)
        self._raise_ceiling()  # also for an old stamp: the last write of the ceiling may have failed

    def _raise_ceiling(self) -> None:
        if self._files is not None and self._last >= self._ceiling:
            ahead_us = (self._last >> LOGICAL_BITS) - self._clock.wall_us()
            step_us = AHEAD_STEP_US if ahead_us > AHEAD_US else CEILING_STEP_US
            ceiling = self._last + (step_us << LOGICAL_BITS)
            number = b"%d" % ceiling
            try:
                self._files.write_atomic(self._path, number + b" " + _check(number) + b"\n")
            except OSError as err:
                self.failure = err
                raise
            self.failure = None
            self._ceiling = ceiling  # only now: after a failed write the next call tries again


def _check(number: bytes) -> bytes:
    return b"%08x" % crc32(number)
