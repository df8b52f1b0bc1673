"""Deadline of one user call, and the growing pauses between its retries."""

from nyala.env.env import Env
from nyala.wire.backoff import Backoff

LONGEST_PAUSE_MS = 100
"""Longest pause between two tries, in milliseconds; short, since an election takes half a second to a second.
"""


class Attempts:
    """A deadline, and the pauses between the tries before it.

    Args:
        env: clock, random source, sleep.
        timeout_ms: budget, from now.
    """

    def __init__(self, env: Env, timeout_ms: int) -> None:
        self._env = env
        self._budget_us = int(timeout_ms * 1000)
        self._end_us = env.clock.monotonic_us() + self._budget_us
        self._backoff = Backoff(env.random, max_ms=LONGEST_PAUSE_MS)

    def progressed(self) -> None:
        """Restart the deadline: the call has made progress."""
        self._end_us = self._env.clock.monotonic_us() + self._budget_us
        self._backoff.reset()

    def left_ms(self) -> int:
        """Return the milliseconds until the deadline; 0 when it has passed."""
        return max(0, self._end_us - self._env.clock.monotonic_us()) // 1000

    async def pause(self, at_least_ms: int = 0) -> bool:
        """Wait before the next try; False when the deadline leaves no room for one."""
        wait_ms = max(at_least_ms, self._backoff.next_ms())
        if wait_ms >= self.left_ms():
            return False
        await self._env.tasks.sleep_ms(wait_ms)
        return True
