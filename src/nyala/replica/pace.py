"""A limit of bytes per second, shared by all that spend from it."""

from nyala.env.clock import Clock
from nyala.env.tasks import Tasks


class Pace:
    """Lets bytes through as fast as allowed; what was not used in a pause is not saved up.

    Args:
        clock: tells how much time has passed.
        tasks: waits.
        bytes_per_second: the limit; 0: none.
    """

    def __init__(self, clock: Clock, tasks: Tasks, bytes_per_second: int) -> None:
        self._clock = clock
        self._tasks = tasks
        self._rate = bytes_per_second
        self._free_us = 0.0

    async def spend(self, size_bytes: int) -> None:
        """Return when so many bytes may have passed."""
        if not self._rate:
            return
        now_us = self._clock.monotonic_us()
        self._free_us = max(self._free_us, now_us) + size_bytes * 1_000_000 / self._rate
        await self._tasks.sleep_ms((self._free_us - now_us) / 1000)
