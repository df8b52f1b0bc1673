"""Deadline of one user call, and the growing pauses between its retries."""

from collections.abc import Iterator
from contextlib import contextmanager

from nyala.common.errors import NyalaError, TimedOut, Unavailable
from nyala.env.env import Env
from nyala.wire.backoff import Backoff

LONGEST_PAUSE_MS = 100
"""Longest pause between two tries, in milliseconds; short, since an election takes half a second to a second.
"""
SHORT_TRY_MS = 250
"""Time below which a try says nothing about the server, in milliseconds: the deadline cut it short."""


class Attempts:
    """A deadline, and the pauses between the tries before it.

    Args:
        env: clock, random source, sleep.
        timeout_ms: budget, from now.

    Attributes:
        env: as given.
    """

    def __init__(self, env: Env, timeout_ms: int) -> None:
        self.env = env
        self._budget_us = int(timeout_ms * 1000)
        self._end_us = env.clock.monotonic_us() + self._budget_us
        self._backoff = Backoff(env.random, max_ms=LONGEST_PAUSE_MS)

    def progressed(self) -> None:
        """Restart the deadline: the call has made progress."""
        self._end_us = self.env.clock.monotonic_us() + self._budget_us
        self._backoff.reset()

    @contextmanager
    def keeping(self, known: NyalaError | None) -> Iterator[None]:
        """Run an inner call that has the rest of the deadline; raise `known` if the rest was too short.

        So the error at the deadline has the reason for which earlier tries failed.

        Args:
            known: error of an earlier try; None: there was none, and every error is raised as it is.
        """
        given_ms = self.left_ms()
        try:
            yield
        except NyalaError as err:
            if known is None or not is_cut_short(err, given_ms):
                raise
            raise known from None

    def left_ms(self) -> int:
        """Return the milliseconds until the deadline; 0 when it has passed."""
        return max(0, self._end_us - self.env.clock.monotonic_us()) // 1000

    async def pause(self, at_least_ms: int = 0) -> bool:
        """Wait before the next try; False when the deadline leaves no room for one."""
        wait_ms = max(at_least_ms, self._backoff.next_ms())
        if wait_ms >= self.left_ms():
            return False
        await self.env.tasks.sleep_ms(wait_ms)
        return True


def is_cut_short(error: NyalaError, given_ms: int) -> bool:
    """Return whether a try failed only because the deadline left hardly any time for it.

    Args:
        error: of the try.
        given_ms: time that it had.
    """
    if given_ms >= SHORT_TRY_MS or error.answered:
        return False
    no_answer = isinstance(error, TimedOut | Unavailable)
    return no_answer and error.details.get("sent") != "no"
