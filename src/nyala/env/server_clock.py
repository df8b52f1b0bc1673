"""The hybrid clock of a server, which limits received hybrid times before they are merged."""

from nyala.common.errors import Unavailable
from nyala.common.hybrid_time import to_micros
from nyala.env.clock import HybridClock
from nyala.env.disciplined_clock import DisciplinedClock
from nyala.env.files import Files
from nyala.env.tasks import Tasks


class FarAhead(Unavailable):
    """A hybrid time is further ahead than `clock_max_ahead_ms`; the clock did not change."""


class ServerClock:
    """A hybrid clock that rejects timestamps too far ahead of physical time. Used on the event loop only.

    Args:
        physical: the physical time.
        files: file system of the file `path`.
        path: path of the file with the ceiling.

    Attributes:
        physical: the physical time.
        limit_us: maximum by which a merged timestamp may be ahead of physical time, in microseconds.
    """

    def __init__(self, physical: DisciplinedClock, files: Files, path: str) -> None:
        self.physical = physical
        self.limit_us = physical.limit_us
        self._hybrid = HybridClock(self.physical, files, path, self._check)
        if self.seen:
            self.physical.resume_from(to_micros(self.seen))

    @property
    def failure(self) -> OSError | None:
        """The error of the last attempt to write the ceiling; None: it succeeded."""
        return self._hybrid.failure

    @property
    def seen(self) -> int:
        """The highest timestamp returned or merged; 0: none."""
        return self._hybrid.seen

    def keep(self, tasks: Tasks) -> None:
        """Write the ceiling in lane CLOCK from now on, before it is needed."""
        self._hybrid.keep(tasks)

    def now(self) -> int:
        """Return a new timestamp, above every one returned or merged before; see `HybridClock.now`."""
        return self._hybrid.now()

    def peek(self) -> int:
        """Return the current time without a new timestamp: not below any timestamp returned before."""
        return self._hybrid.peek()

    def refresh(self) -> None:
        """Start writing a new ceiling if half of the distance is used, or the last write failed."""
        self._hybrid.refresh()

    def merge(self, stamp: int) -> bool:
        """Advance past a timestamp of a received message; return False if the ceiling must be raised first.

        Raises:
            FarAhead: the timestamp is too far ahead; nothing changed.
        """
        return self._hybrid.merge(stamp)

    async def advance_past(self, stamp: int) -> None:
        """Advance past a timestamp of a received message, and wait until the ceiling is above it.

        Raises:
            FarAhead: the timestamp is too far ahead; nothing changed.
            OSError: the ceiling cannot be written; nothing changed.
        """
        await self._hybrid.advance_past(stamp)

    def _check(self, stamp: int) -> None:
        if stamp > self.seen and self.ahead_us(stamp) > self.limit_us:
            raise FarAhead(
                f"the time {stamp} is {duration(self.ahead_us(stamp))} ahead of this server's "
                "clock; the limit is "
                f"clock_max_ahead_ms ({self.limit_us // 1000}). Synchronise the servers' clocks with NTP; "
                "`nyala cluster ksck` shows which clock is wrong"
            )

    def ahead_us(self, stamp: int) -> int:
        """Return the microseconds by which a timestamp is ahead of physical time; negative: behind."""
        return to_micros(stamp) - self.physical.wall_us()


def duration(time_us: int) -> str:
    """Format the absolute value of a duration in seconds, hours, days or years."""
    seconds = abs(time_us) / 1e6
    for unit, name in ((365.25 * 86_400, "years"), (86_400, "days"), (3600, "hours")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.1f} s"
