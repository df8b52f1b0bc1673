"""The hybrid clock of a server: every time that comes from outside is bounded here, before it is merged."""

from nyala.common.errors import Unavailable
from nyala.common.hybrid_time import to_micros
from nyala.env.clock import Clock, HybridClock
from nyala.env.files import Files
from nyala.env.steady import SteadyClock


class FarAhead(Unavailable):
    """A hybrid time lies further in the future than is believed; no clock was moved."""


class ServerClock(HybridClock):
    """A hybrid clock that does not follow a time further ahead of its physical time than is allowed.

    Args:
        clock: of the machine.
        files: where the ceiling is kept.
        path: file of the ceiling.
        max_ahead_ms: how far ahead of physical time a merged stamp may be.

    Attributes:
        physical: the time that bounds what is merged.
    """

    def __init__(self, clock: Clock, files: Files, path: str, max_ahead_ms: int) -> None:
        self.physical = SteadyClock(clock, max_ahead_ms)
        self.limit_us = max_ahead_ms * 1000
        super().__init__(self.physical, files, path)
        if self.seen:
            self.physical.begin_at(to_micros(self.seen))

    def merge(self, stamp: int) -> bool:
        """See `HybridClock.merge`.

        Raises:
            FarAhead: the stamp is too far in the future; nothing was moved.
        """
        if stamp > self.seen and self.ahead_us(stamp) > self.limit_us:
            raise FarAhead(
                f"the time {stamp} lies {duration(self.ahead_us(stamp))} in the future of this server; at "
                f"most clock_max_ahead_ms ({self.limit_us // 1000}) are believed. Let a time daemon (NTP) "
                "keep the servers' clocks together; which one is wrong is told by: nyala cluster ksck"
            )
        return super().merge(stamp)

    def ahead_us(self, stamp: int) -> int:
        """Return how far a stamp lies ahead of physical time, in microseconds; negative: behind it."""
        return to_micros(stamp) - self.physical.wall_us()


def duration(time_us: int) -> str:
    """Return a length of time as a person says it, without its sign."""
    seconds = abs(time_us) / 1e6
    for unit, name in ((365.25 * 86_400, "years"), (86_400, "days"), (3600, "hours")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.1f} s"
