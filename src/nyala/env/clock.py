"""Monotonic and wall time, the random source, and the hybrid logical clock.

Only `env/` reads clocks or makes random numbers; the simulator has its own `Clock`.
"""

import asyncio
import os
import random
import time
from collections.abc import Callable
from typing import Protocol
from zlib import crc32

from nyala.common.errors import Corrupt, Unavailable
from nyala.common.hybrid_time import LOGICAL_BITS
from nyala.env.files import Files
from nyala.env.monotonic import monotonic_us
from nyala.env.tasks import Lane, Tasks


class Clock(Protocol):
    """Time of one process."""

    def monotonic_us(self) -> int:
        """Microseconds from an arbitrary start; never decreases."""
        ...

    def wall_us(self) -> int:
        """Microseconds since the epoch; may jump either way."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_us(self) -> int:
        """Microseconds from an arbitrary start; never decreases."""
        return monotonic_us()

    def wall_us(self) -> int:
        """Microseconds since the epoch; may jump either way."""
        return time.time_ns() // 1000


def system_random() -> random.Random:
    """Return a generator seeded by the operating system."""
    return random.Random(os.urandom(32))


def random_id(rng: random.Random) -> str:
    """Return a new id of 32 hex digits (tables, tablets, servers, clients)."""
    return f"{rng.getrandbits(128):032x}"


CEILING_STEP_US = 5_000_000
AHEAD_US = 1_000_000
AHEAD_STEP_US = 500_000
"""Distance of a new ceiling, in microseconds, while the clock is more than `AHEAD_US` ahead.

A restart begins at the ceiling, so the clock may be ahead for that reason; it hardly moves until the wall
clock has caught up. A small step keeps repeated restarts from adding a large one each.
"""
NEAR = (CEILING_STEP_US // 2) << LOGICAL_BITS
"""Distance of the last timestamp to the ceiling below which each timestamp may start to raise it."""
MARGIN = 1_000 << LOGICAL_BITS
"""Minimum distance of the wall clock and merged timestamps to the ceiling, as hybrid time: 1 ms."""


class HybridClock:
    """A hybrid logical clock whose timestamps stay unique and increasing across restarts.

    A ceiling is durable before the clock exceeds it, and a restart begins above it, so that timestamps and
    assertions such as "no later timestamp <= T" stay valid after a restart. Used on the event loop only.

    During the start of a server the ceiling is written synchronously. After `keep` it is written in a lane,
    when half of the distance is used. If the disk takes longer than the other half, the clock lags behind the
    wall clock; only a timestamp of another server above the ceiling has to wait (`advance_past`).

    Args:
        clock: wall time.
        files: file system of the ceiling; None: a client's clock, which has no ceiling.
        path: file of the ceiling.
        check_merge: raises for a timestamp that must not be merged.

    Attributes:
        failure: error of the last attempt to save the ceiling; None: it succeeded.
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
            files.sync_dir(path.rpartition("/")[0])  # else a power failure could undo what was read
            self._last = self._ceiling = int(number)

    def keep(self, tasks: Tasks) -> None:
        """Write the ceiling in lane CLOCK from now on, before it is needed."""
        self._tasks = tasks

    def now(self) -> int:
        """Return a new timestamp, above every one returned or merged before.

        Raises:
            Unavailable: no timestamp is left below the ceiling, and the disk has not written a new one.
            OSError: during the start of a server: the ceiling cannot be written.
        """
        stamp = max(self._physical(), self._last + 1)
        if not self._ensure_below_ceiling(stamp):
            raise Unavailable(
                "the disk did not write a new ceiling of the hybrid clock in time; retry"
            )
        self._last = stamp
        self._refresh_soon()
        return stamp

    def peek(self) -> int:
        """Return the current time without a new timestamp: not below any timestamp returned before."""
        return max(self._physical(), self._last)

    @property
    def seen(self) -> int:
        """The highest timestamp returned or merged; 0: none."""
        return self._last

    def merge(self, stamp: int) -> bool:
        """Advance past a timestamp of a received message, so that later ones are above it.

        Returns:
            False: the durable ceiling is too low, and nothing changed; `advance_past` waits for it.
        """
        self._check_merge(stamp)
        if not self._ensure_below_ceiling(max(stamp, self._last) + MARGIN):
            return False
        self._last = max(self._last, stamp)
        self._refresh_soon()
        return True

    async def advance_past(self, stamp: int) -> None:
        """As `merge`, but wait until the ceiling is raised.

        Raises:
            OSError: the ceiling cannot be written; nothing changed.
        """
        while not self.merge(stamp):
            if self._saving is not None:
                await asyncio.shield(self._saving)  # a cancelled caller must not cancel it
            if self.failure is not None:
                raise self.failure

    def refresh(self) -> None:
        """Start writing a new ceiling if half of the distance is used, or the last write failed."""
        if self._tasks is not None:
            wall_us = self._clock.wall_us()
            reading = max(wall_us << LOGICAL_BITS, self._last)
            if self._ceiling - reading < self._ceiling_distance(reading, wall_us) // 2:
                self._start_saving(reading)

    def _refresh_soon(self) -> None:
        """Refresh; without a look at the wall clock while the ceiling is far above the last timestamp."""
        if self._ceiling - self._last < NEAR:
            self.refresh()

    def _physical(self) -> int:
        """Return the wall time, limited by the durable ceiling."""
        wall = self._clock.wall_us() << LOGICAL_BITS
        return wall if self._tasks is None else min(wall, self._ceiling - MARGIN)

    def _ensure_below_ceiling(self, stamp: int) -> bool:
        """Return whether a timestamp is below the durable ceiling; during start, raise the ceiling."""
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
        self._ceiling = ceiling  # set last, so that the next call retries after a failed write
        return True

    def _ceiling_distance(self, reading: int, wall_us: int) -> int:
        """Return the distance of the next ceiling above a reading."""
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
        path: path of the file.
        ceiling: hybrid time.
    """
    number = b"%d" % ceiling
    files.write_atomic(path, number + b" " + _check(number) + b"\n")


def _check(number: bytes) -> bytes:
    return b"%08x" % crc32(number)
