"""Physical time of a server: its wall clock, unless that jumps away from the other servers' clocks.

The clock of a machine may be wrong: it may start in 1970 or in 2050, and be set, rightly or wrongly, while a
server runs. A timestamp cannot be revoked, so a jump of the wall clock alone is not followed.
"""

from collections.abc import Callable, Collection
from enum import Enum

from nyala.common.hybrid_time import MAX_HYBRID_TIME, to_micros
from nyala.env.clock import Clock

LATEST_US = to_micros(MAX_HYBRID_TIME) - 30 * 86_400 * 1_000_000
"""Microseconds since the epoch, 30 days before the last timestamp (2041); no later wall clock is followed."""
ISOLATION_US = 3_000_000
"""Microseconds after the start after which a server without contact to others uses its wall clock."""


class ClockVerdict(Enum):
    """Result of comparing this machine's wall clock with those of the other servers."""

    UNKNOWN = "no other is known"
    AGREED = "a majority agrees with it"
    WRONG = "a majority agrees on another time"
    UNDECIDED = "no majority agrees on any time"


def _no_offsets() -> Collection[int]:
    return ()


class DisciplinedClock:
    """A `Clock` whose wall time does not follow a jump of one machine's clock.

    A jump is a difference of more than `limit_ms` between the wall clock and the time expected from its last
    reading and the monotonic clock; after a restart, the last reading is the time up to which the earlier run
    may have assigned timestamps. Smaller steps are followed. After a jump:

        a majority agrees with the wall clock    the jump is followed
        a majority agrees on another time        that time is followed
        otherwise                                time advances by the monotonic clock

    A tablet server without contact to peers compares its clock with those of the masters. One that has had
    no contact to others since its start has nothing to compare with. After
    `ISOLATION_US` it follows its wall clock, except for a forward jump since the start: others may exist,
    and would reject its hybrid times. Such a jump is followed only if the server is `alone`.

    No jump to a time beyond `LATEST_US` is followed, even if other clocks confirm it.

    A forward jump is followed at once. A backward jump is followed by running at half speed until the
    followed clock has caught up: earlier timestamps are ahead of it, and other servers reject hybrid times
    far ahead of their clocks.

    Args:
        clock: clock of the machine.
        limit_ms: a larger difference is a jump, and clocks further apart disagree.

    Attributes:
        limit_us: `limit_ms` in microseconds.
        has_no_peers: this server has replicas, and no other server has replicas of their groups.
    """

    def __init__(self, clock: Clock, limit_ms: int) -> None:
        self._clock = clock
        self.limit_us = limit_ms * 1000
        self._offsets: Callable[[], Collection[int]] = _no_offsets
        self._masters: Callable[[], Collection[int]] = _no_offsets
        self._monotonic_us = self._started_us = clock.monotonic_us()
        self._at_us = clock.wall_us()
        # Wall clock minus monotonic clock, without jumps.
        self._offset_us = self._at_us - self._started_us
        self.has_no_peers = False
        self._had_contact = False  # there was contact to another server

    def compare(self, offsets: Callable[[], Collection[int]]) -> None:
        """Set the source of the other servers' clocks.

        Args:
            offsets: returns the microseconds by which the others' wall clocks are ahead of this one.
        """
        self._offsets = offsets

    def compare_with_masters(self, offsets: Callable[[], Collection[int]]) -> None:
        """Set the source of the masters' clocks, which count where those of peers are not known.

        Args:
            offsets: returns the microseconds by which the masters' wall clocks are ahead of this one.
        """
        self._masters = offsets

    def resume_from(self, at_us: int) -> None:
        """Set the last reading to `at_us`, the time at which the earlier run ended."""
        self._at_us = at_us

    def monotonic_us(self) -> int:
        """Microseconds from an arbitrary start; never decreases."""
        return self._clock.monotonic_us()

    def wall_us(self) -> int:
        """Microseconds since the epoch, without unconfirmed jumps."""
        now_us, wall_us = self._clock.monotonic_us(), self._clock.wall_us()
        elapsed_us = now_us - self._monotonic_us
        at_us = self._at_us + elapsed_us
        if abs(wall_us - now_us - self._offset_us) <= self.limit_us:
            self._offset_us = wall_us - now_us
        if abs(wall_us - at_us) > self.limit_us:
            followed_us = self._time_after_jump(wall_us, at_us)
            wall_us = followed_us if followed_us <= LATEST_US else at_us
        if at_us - wall_us > self.limit_us:
            wall_us = self._at_us + elapsed_us // 2
        self._monotonic_us, self._at_us = now_us, wall_us
        return wall_us

    def _time_after_jump(self, wall_us: int, at_us: int) -> int:
        """Return the time to follow after a jump."""
        verdict, ahead_us = self.verdict()
        running_us = self._clock.monotonic_us() - self._started_us
        if verdict is ClockVerdict.AGREED:
            return wall_us
        if not self._had_contact and running_us >= ISOLATION_US:
            without_jumps_us = self._offset_us + self._clock.monotonic_us()
            return wall_us if self.has_no_peers else min(wall_us, without_jumps_us)
        return wall_us + ahead_us if verdict is ClockVerdict.WRONG else at_us

    def verdict(self) -> tuple[ClockVerdict, int]:
        """Return the verdict, and the microseconds by which the majority is ahead of the wall clock."""
        offsets = sorted(self._offsets() or self._masters())
        if not offsets:
            return ClockVerdict.UNKNOWN, 0
        self._had_contact = True
        total = len(offsets) + 1
        if 2 * (1 + self._count_near(offsets, 0)) > total:
            return ClockVerdict.AGREED, 0
        middle = offsets[len(offsets) // 2]
        if 2 * self._count_near(offsets, middle) > total:
            return ClockVerdict.WRONG, middle
        return ClockVerdict.UNDECIDED, 0

    def _count_near(self, offsets: Collection[int], to: int) -> int:
        return sum(abs(o - to) <= self.limit_us for o in offsets)

    def ahead_us(self) -> int:
        """Return the microseconds by which this clock is ahead of the machine's wall clock."""
        return self.wall_us() - self._clock.wall_us()
