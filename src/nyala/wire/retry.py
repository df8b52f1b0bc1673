"""How long to keep trying and how long to wait in between. Clock, randomness and sleep are `env`'s.

The simulator runs this too: two runs of one seed wait the same times.
"""

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nyala.common.errors import Retryable, TimedOut
from nyala.env.clock import Clock
from nyala.env.env import Env

T = TypeVar("T")


class Deadline:
    """A moment after which nothing is tried any more.

    Args:
        clock: monotonic time.
        timeout_ms: from now.
    """

    def __init__(self, clock: Clock, timeout_ms: float) -> None:
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._end_us = clock.monotonic_us() + int(timeout_ms * 1000)

    def remaining_ms(self) -> int:
        """Milliseconds left; 0 when it has passed."""
        return max(0, self._end_us - self._clock.monotonic_us()) // 1000

    def attempt_ms(self, cap_ms: int) -> int:
        """Timeout of the next attempt: what is left, at most `cap_ms`, at least 1."""
        return max(1, min(cap_ms, self.remaining_ms()))

    def check(self, doing: str, last: BaseException | None = None) -> None:
        """Raise when the deadline has passed.

        Args:
            doing: for the message: "writing to table t".
            last: why the last attempt failed, for the message.

        Raises:
            TimedOut: the deadline has passed.
        """
        if self.remaining_ms() == 0:
            why = f"; the last attempt failed with: {last}" if last is not None else ""
            raise TimedOut(f"gave up {doing} after {self._timeout_ms:.0f} ms{why}") from last


class Backoff:
    """Pauses that grow, with jitter, so that many clients do not return at one moment.

    Args:
        rng: `env.random`.
        initial_ms: upper bound of the first pause.
        max_ms: upper bound of any.
    """

    def __init__(self, rng: random.Random, initial_ms: int = 10, max_ms: int = 1000) -> None:
        assert 0 < initial_ms <= max_ms, f"{initial_ms} {max_ms}"
        self._rng = rng
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._bound_ms = initial_ms

    def next_ms(self) -> int:
        """Return the next pause: between half and the whole of a bound that doubles."""
        bound = self._bound_ms
        self._bound_ms = min(2 * bound, self._max_ms)
        return self._rng.randint((bound + 1) // 2, bound)

    def reset(self) -> None:
        """Begin anew, after a success."""
        self._bound_ms = self._initial_ms


async def retrying(
    env: Env, deadline: Deadline, doing: str, attempt: Callable[[], Awaitable[T]]
) -> T:
    """Call `attempt` until it succeeds, fails for good, or the deadline passes.

    A server's `retry_after_ms` lengthens the pause that follows it.

    Raises:
        TimedOut: the deadline passed; the message carries the last failure.
        NyalaError: what `attempt` raised, when it is not Retryable.
    """
    backoff = Backoff(env.random)
    last: Retryable | None = None
    while True:
        deadline.check(doing, last)
        try:
            return await attempt()
        except Retryable as err:
            last = err
        asked = last.details.get("retry_after_ms", "0")
        pause_ms = max(backoff.next_ms(), int(asked) if asked.isdigit() else 0)
        await env.tasks.sleep_ms(min(pause_ms, deadline.remaining_ms()))
