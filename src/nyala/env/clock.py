"""Monotonic and wall time, the random source, and the hybrid logical clock.

Nothing outside `env/` reads a clock or makes a random number; the simulator has its own `Clock`.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable
from typing import Protocol
from zlib import crc32

from nyala.common.errors import Corrupt, Unavailable
from nyala.common.hybrid_time import LOGICAL_BITS, LOGICAL_MASK
from nyala.env.files import Files
from nyala.env.tasks import Lane, Tasks


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
MARGIN = 1_000 << LOGICAL_BITS
"""The wall and merged stamps stay a millisecond below the ceiling: room for four million new stamps."""


class HybridClock:
    """A hybrid logical clock whose stamps stay unique and growing across restarts.

    A ceiling is made durable before the clock passes it, and a restart begins above it, so that a
    stamp or a promise ("no later stamp <= T") outlives the process. Runs on the loop only.

    While a server starts, the ceiling is written in place. From `keep` on it is written in the pool, when
    half of its reach is used. A disk that takes longer than the other half makes the clock lag behind the
    wall; only a stamp of another server that lies above the ceiling has to wait (`advance_past`).

    Args:
        clock: wall time.
        files: where the ceiling is kept; None for a client, which promises nothing.
        path: file of the ceiling.
        check_merge: raises for a stamp that must not be merged.

    Attributes:
        failure: why the ceiling could not be saved when that was due last; None: it was.
    """

    def __init__(
        self,
        clock: Clock,
        files: Files | None = None,
        path: str = "",
        check_merge: Callable[[int], None] = lambda stamp: None,
    ) -> None:
        self._clock = clock
        self._files = files
        self._path = path
        self._check_merge = check_merge
        self._last = 0
        self._ceiling = 0
        self._tasks: Tasks | None = None
        self._saving: asyncio.Task[object] | None = None
        self.failure: OSError | None = None
        if files is not None and files.exists(path):
            number, _, check = files.read(path).strip().partition(b" ")
            if not number.isdigit() or check != _check(number):
                raise Corrupt(
                    f"{path} does not hold a hybrid clock ceiling with a valid checksum; without "
                    "it this server "
                    "could assign a timestamp twice, so its replicas have to be replaced"
                )
            files.sync_dir(path.rpartition("/")[0])  # else a power cut undoes what was read
            self._last = self._ceiling = int(number)

    def keep(self, tasks: Tasks) -> None:
        """Write the ceiling in the pool from now on, ahead of need."""
        self._tasks = tasks

    def now(self) -> int:
        """Return a new stamp, above every stamp returned or merged before.

        Raises:
            Unavailable: no stamp is left below the ceiling, and the disk has not taken a new one.
            OSError: while the server starts: the ceiling cannot be written.
        """
        stamp = max(self._physical(), self._last + 1)
        if not self._ensure_below_ceiling(stamp):
            raise Unavailable(
                "the disk did not write a new ceiling of the hybrid clock in time; retry"
            )
        self._last = stamp
        self.refresh()
        return stamp

    def peek(self) -> int:
        """Return the clock's reading without taking a stamp: never below any stamp given out."""
        return max(self._physical() | LOGICAL_MASK, self._last)

    @property
    def seen(self) -> int:
        """The highest stamp given out or merged; 0 before the first."""
        return self._last

    def merge(self, stamp: int) -> bool:
        """Move past a stamp seen in a message, so that later stamps are above it.

        Returns:
            False: the ceiling is not durable so far up yet, nothing was moved; `advance_past` waits for it.
        """
        self._check_merge(stamp)
        if not self._ensure_below_ceiling(max(stamp, self._last) + MARGIN):
            return False
        self._last = max(self._last, stamp)
        self.refresh()
        return True

    async def advance_past(self, stamp: int) -> None:
        """As `merge`, waiting for the disk where the ceiling has to be moved first.

        Raises:
            OSError: the ceiling cannot be written; nothing was moved.
        """
        while not self.merge(stamp):
            if self._saving is not None:
                await asyncio.shield(self._saving)  # a cancelled caller does not cancel it
            if self.failure is not None:
                raise self.failure

    def refresh(self) -> None:
        """Begin to write a new ceiling if half of the last one's reach is used, or writing it failed."""
        if self._tasks is not None:
            wall_us = self._clock.wall_us()
            reading = max(wall_us << LOGICAL_BITS, self._last)
            if self._ceiling - reading < self._ceiling_distance(reading, wall_us) // 2:
                self._start_saving(reading)

    def _physical(self) -> int:
        """Return the wall's time, but for a durable ceiling that is in the way."""
        wall = self._clock.wall_us() << LOGICAL_BITS
        return wall if self._tasks is None else min(wall, self._ceiling - MARGIN)

    def _ensure_below_ceiling(self, stamp: int) -> bool:
        """Whether a stamp is below the durable ceiling; while the server starts, see to it."""
        if self._files is None or stamp < self._ceiling:
            return True
        if self._tasks is not None:
            self._start_saving(stamp)
            return False
        try:
            self._write(ceiling := stamp + self._ceiling_distance(stamp, self._clock.wall_us()))
        except OSError as err:
            self.failure = err
            raise
        self.failure = None
        self._ceiling = ceiling  # only now: after a failed write the next call tries again
        return True

    def _ceiling_distance(self, reading: int, wall_us: int) -> int:
        """Return how far above a reading the next ceiling is to be."""
        ahead_us = (reading >> LOGICAL_BITS) - wall_us
        return (AHEAD_STEP_US if ahead_us > AHEAD_US else CEILING_STEP_US) << LOGICAL_BITS

    def _start_saving(self, reading: int) -> None:
        if self._saving is None and self._tasks is not None:
            work = self._save(reading + self._ceiling_distance(reading, self._clock.wall_us()))
            self._saving = self._tasks.spawn(work, "ceiling of the hybrid clock")

    async def _save(self, ceiling: int) -> None:
        assert self._tasks is not None
        try:
            await self._tasks.run(Lane.CLOCK, self._write, ceiling)
        except OSError as err:
            self.failure = err
        else:
            self.failure = None
            self._ceiling = ceiling
        finally:
            self._saving = None

    def _write(self, ceiling: int) -> None:
        assert self._files is not None
        write_ceiling(self._files, self._path, ceiling)


def write_ceiling(files: Files, path: str, ceiling: int) -> None:
    """Make a ceiling durable.

    Args:
        files: file system.
        path: of the file.
        ceiling: hybrid time.
    """
    number = b"%d" % ceiling
    files.write_atomic(path, number + b" " + _check(number) + b"\n")


def _check(number: bytes) -> bytes:
    return b"%08x" % crc32(number)
