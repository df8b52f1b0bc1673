"""A deadline and the pauses between tries: exponential, jittered, from the environment's clock."""

from nyala.env.env import Env

FIRST_PAUSE_MS = 10
LONGEST_PAUSE_MS = 500


class Attempts:
    """The time budget of one user-visible call.

    Args:
        env: clock, random source, sleep.
        timeout_ms: budget, from now.
    """

    def __init__(self, env: Env, timeout_ms: int) -> None:
        self._env = env
        self._deadline_us = env.clock.monotonic_us() + timeout_ms * 1000
        self._pause_ms = FIRST_PAUSE_MS
        self.count = 0

    def left_ms(self) -> int:
        """Milliseconds until the deadline; 0 when it has passed."""
        return max(0, (self._deadline_us - self._env.clock.monotonic_us()) // 1000)

    async def pause(self, at_least_ms: int = 0) -> bool:
        """Wait before the next try; False when the deadline leaves no room for one."""
        self.count += 1
        wait_ms = max(at_least_ms, round(self._pause_ms * (0.5 + self._env.random.random() / 2)))
        self._pause_ms = min(LONGEST_PAUSE_MS, self._pause_ms * 2)
        if wait_ms >= self.left_ms():
            return False
        await self._env.tasks.sleep_ms(wait_ms)
        return True
