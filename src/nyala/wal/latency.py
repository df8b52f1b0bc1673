"""Latency of the log's rounds, by which a slow disk is recognised. Used on the event loop only.

A round counts when it ends, and an unfinished one by its age, so that a disk that does not respond at all is
the slowest.
"""

from collections import deque
from dataclasses import dataclass

from nyala.env.clock import Clock

SLOT_US = 250_000
KEPT_US = 60_000_000
"""Longest supported span, in microseconds."""


@dataclass(frozen=True, slots=True)
class Load:
    """Rounds within a span of time.

    Attributes:
        rounds: number of rounds that ended, plus the unfinished one if it is slower than those.
        busy: fraction of the span spent waiting for the disk, 0 to 1.
        mean_us: mean duration of a round in microseconds; 0: there was none.
    """

    rounds: int
    busy: float
    mean_us: int


class Latency:
    """Latency of one log.

    Args:
        clock: monotonic time; None: nothing is measured.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._slots: deque[tuple[int, int, int]] = deque()  # begin, rounds, microseconds in them
        self._began_us: int | None = None

    def round_started(self) -> None:
        """Record the start of a round."""
        self._began_us = None if self._clock is None else self._clock.monotonic_us()

    def round_ended(self) -> None:
        """Record the end of a round, successful or not."""
        if self._clock is None or self._began_us is None:
            return
        now_us = self._clock.monotonic_us()
        took_us, self._began_us = now_us - self._began_us, None
        slot = now_us - now_us % SLOT_US
        rounds = 0
        if self._slots and self._slots[-1][0] == slot:
            _, rounds, before_us = self._slots.pop()
            took_us += before_us
        self._slots.append((slot, rounds + 1, took_us))
        while self._slots[0][0] < now_us - KEPT_US:
            self._slots.popleft()

    def load(self, span_us: int) -> Load:
        """Return the load of the last `span_us` microseconds."""
        if self._clock is None:
            return Load(0, 0.0, 0)
        now_us = self._clock.monotonic_us()
        rounds = busy_us = 0
        for slot, count, took_us in reversed(self._slots):
            if slot < now_us - span_us:
                break
            rounds, busy_us = rounds + count, busy_us + took_us
        if self._began_us is not None:
            age_us = now_us - self._began_us
            if age_us * rounds >= busy_us:  # slower than the mean of the finished rounds
                rounds, busy_us = rounds + 1, busy_us + age_us
        return Load(rounds, min(1.0, busy_us / span_us), busy_us // max(1, rounds))
