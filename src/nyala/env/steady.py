"""Physical time of a server: its wall clock, unless that jumps away from what other servers' clocks say.

No clock of a machine is right for certain: it may start in 1970 or in 2050, and be set right or wrong while a
server runs. A stamp cannot be taken back, so a jump is not followed on the wall clock's word alone.
"""

from collections.abc import Callable, Collection
from enum import Enum

from nyala.env.clock import Clock

ISOLATION_US = 3_000_000
"""A server that has heard of no other for so long after its start has no clock but its own."""


class ClockVerdict(Enum):
    """Comparison of this machine's wall clock with those of the other servers."""

    UNKNOWN = "no other is known"
    AGREED = "a majority agrees with it"
    WRONG = "a majority agrees on another time"
    UNDECIDED = "no majority agrees on any time"


def _no_offsets() -> Collection[int]:
    return ()


class SteadyClock:
    """A `Clock` whose wall time does not jump on the word of one machine.

    A jump is a difference of more than `limit_ms` between the wall clock and what its last reading and the
    monotonic clock make of it; after a restart, the time up to which the earlier life may have stamped is
    the last reading. Smaller steps are followed. After a jump:

        a majority agrees with the wall clock, or no other server was ever heard of    it is followed
        a majority agrees on another time                                              that is followed
        otherwise                                                time goes on by the monotonic clock

    Forward it is followed at once; back by going at half the pace until the clock that is followed has caught
    up: what was stamped before lies ahead of it, and others refuse a hybrid time far ahead of their clocks.

    Args:
        clock: of the machine.
        limit_ms: a larger difference is a jump, and clocks further apart disagree.
    """

    def __init__(self, clock: Clock, limit_ms: int) -> None:
        self._clock = clock
        self._limit_us = limit_ms * 1000
        self._offsets: Callable[[], Collection[int]] = _no_offsets
        self._monotonic_us = self._started_us = clock.monotonic_us()
        self._at_us = clock.wall_us()
        self._others_seen = False  # another server was ever heard of

    def compare(self, offsets: Callable[[], Collection[int]]) -> None:
        """Compare with others from now on.

        Args:
            offsets: returns how far the others' wall clocks are ahead of this machine's, in microseconds.
        """
        self._offsets = offsets

    def resume_from(self, at_us: int) -> None:
        """Take it that it was `at_us` when the earlier life of this server ended."""
        self._at_us = at_us

    def monotonic_us(self) -> int:
        """Microseconds from an arbitrary start; never goes back."""
        return self._clock.monotonic_us()

    def wall_us(self) -> int:
        """Microseconds since the epoch, as far as they can be believed."""
        now_us, wall_us = self._clock.monotonic_us(), self._clock.wall_us()
        elapsed_us = now_us - self._monotonic_us
        at_us = self._at_us + elapsed_us
        if abs(wall_us - at_us) > self._limit_us:
            wall_us = self._time_after_jump(wall_us, at_us)
        if at_us - wall_us > self._limit_us:
            wall_us = self._at_us + elapsed_us // 2
        self._monotonic_us, self._at_us = now_us, wall_us
        return wall_us

    def _time_after_jump(self, wall_us: int, at_us: int) -> int:
        """Return the time to follow after a jump."""
        verdict, ahead_us = self.verdict()
        running_us = self._clock.monotonic_us() - self._started_us
        alone = not self._others_seen and running_us >= ISOLATION_US
        if verdict is ClockVerdict.AGREED or alone:
            return wall_us
        return wall_us + ahead_us if verdict is ClockVerdict.WRONG else at_us

    def verdict(self) -> tuple[ClockVerdict, int]:
        """Return what the others say, and how far the time that a majority agrees on is ahead of the wall."""
        offsets = sorted(self._offsets())
        if not offsets:
            return ClockVerdict.UNKNOWN, 0
        self._others_seen = True
        total = len(offsets) + 1
        if 2 * (1 + self._count_near(offsets, 0)) > total:
            return ClockVerdict.AGREED, 0
        middle = offsets[len(offsets) // 2]
        if 2 * self._count_near(offsets, middle) > total:
            return ClockVerdict.WRONG, middle
        return ClockVerdict.UNDECIDED, 0

    def _count_near(self, offsets: Collection[int], to: int) -> int:
        return sum(abs(o - to) <= self._limit_us for o in offsets)

    def ahead_us(self) -> int:
        """Return how far the time told here is ahead of the machine's wall clock."""
        return self.wall_us() - self._clock.wall_us()
