"""Rate limits of copies: one of their own, and a lower one while clients write to this server.

Appends to the log would have to wait for a copy that uses all of disk and processor. On the loop
only.
"""

from collections.abc import Callable

from nyala.env.clock import Clock

SAMPLE_US = 100_000
IDLE_US = 1_000_000
"""Time without a round of the log after which clients count as idle, in microseconds."""
MIN_ROUNDS = 2
"""Minimum number of log rounds between two samples that counts as clients' writes; one may have another
cause.
"""
BUSY_CHUNK_BYTES = 1 << 20
"""Bytes that are read, sent and written at a time while clients write, who wait for one piece at most."""
CHUNKS_PER_SECOND = 4
"""Minimum number of pieces per second at the busy rate: the caller of a source waits for a piece, and all
copies share the rate.
"""
MIN_CHUNK_BYTES = 4096


class WriteActivity:
    """Activity of writers to the log other than copies.

    Args:
        clock: monotonic time.
        rounds: returns how many rounds the log has written.
    """

    def __init__(self, clock: Clock, rounds: Callable[[], int]) -> None:
        self._clock = clock
        self._rounds = rounds
        self._seen = 0
        self._sampled_us: int | None = None
        self._busy_us = -IDLE_US

    def note_own_round(self) -> None:
        """Discount the next round: a copy is about to append to the log itself."""
        self._seen += 1

    @property
    def busy(self) -> bool:
        """True if there were writes recently."""
        now_us, sampled_us = self._clock.monotonic_us(), self._sampled_us
        if sampled_us is None or now_us - sampled_us >= SAMPLE_US:
            rounds = self._rounds()
            if sampled_us is not None:  # the first sample has nothing to be compared with
                min_rounds = MIN_ROUNDS * max(1, (now_us - sampled_us) // IDLE_US)
                self._busy_us = now_us if rounds - self._seen >= min_rounds else self._busy_us
            self._sampled_us, self._seen = now_us, rounds
        return now_us - self._busy_us < IDLE_US


class CopyThrottle:
    """A limit of bytes per second, shared by all its users; unused capacity is not accumulated.

    Args:
        clock: monotonic time.
        writers: write activity of this server.
        bytes_per_second: the limit; 0: none.
        busy_bytes_per_second: the limit while others write; 0: none.
    """

    def __init__(
        self,
        clock: Clock,
        writers: WriteActivity,
        bytes_per_second: int,
        busy_bytes_per_second: int,
    ) -> None:
        self.writers = writers
        self._clock = clock
        self._rate = bytes_per_second
        self._busy_rate = busy_bytes_per_second
        self._free_us = 0.0

    def spend(self, size_bytes: int) -> float:
        """Return the milliseconds to wait for so many bytes."""
        limits = [self._rate, self._busy_rate if self.writers.busy else 0]
        rate = min(filter(None, limits), default=0)
        if not rate:
            return 0
        now_us = self._clock.monotonic_us()
        self._free_us = max(self._free_us, now_us) + size_bytes * 1_000_000 / rate
        return (self._free_us - now_us) / 1000

    def chunk_bytes(self, size_bytes: int) -> int:
        """Return how many of so many bytes to transfer at a time."""
        if not self._busy_rate or not self.writers.busy:
            return size_bytes
        of_rate = max(MIN_CHUNK_BYTES, self._busy_rate // CHUNKS_PER_SECOND)
        return min(size_bytes, BUSY_CHUNK_BYTES, of_rate)
