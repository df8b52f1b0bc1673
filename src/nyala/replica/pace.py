"""A limit of bytes per second, shared by all that spend from it."""

from nyala.env.clock import Clock


class Pace:
    """Lets bytes through as fast as allowed; what was not used in a pause is not saved up.

    Args:
        clock: tells how much time has passed.
        bytes_per_second: the limit; 0: none.
    """

    def __init__(self, clock: Clock, bytes_per_second: int) -> None:
        self._clock = clock
        self._rate = bytes_per_second
        self._free_us = 0.0

    def spend(self, size_bytes: int) -> float:
        """Return in how many milliseconds so many bytes may have passed."""
        if not self._rate:
            return 0
        now_us = self._clock.monotonic_us()
        self._free_us = max(self._free_us, now_us) + size_bytes * 1_000_000 / self._rate
        return (self._free_us - now_us) / 1000
