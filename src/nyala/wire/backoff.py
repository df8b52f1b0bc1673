"""Backoff between retries. Randomness is `env`'s, so that simulated runs of one seed are the same."""

import random


class Backoff:
    """Exponential backoff with jitter, so that many clients do not retry at the same moment.

    Args:
        rng: `env.random`.
        initial_ms: upper bound of the first pause.
        max_ms: upper bound of any pause.
    """

    def __init__(self, rng: random.Random, initial_ms: int = 10, max_ms: int = 1000) -> None:
        assert 0 < initial_ms <= max_ms, f"{initial_ms} {max_ms}"
        self._rng = rng
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._bound_ms = initial_ms

    def next_ms(self) -> int:
        """Return the next pause: between 50% and 100% of a bound that doubles each time."""
        bound = self._bound_ms
        self._bound_ms = min(2 * bound, self._max_ms)
        return self._rng.randint((bound + 1) // 2, bound)

    def reset(self) -> None:
        """Reset the bound after a success."""
        self._bound_ms = self._initial_ms
