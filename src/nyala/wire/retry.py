"""Pauses between retries. Randomness is `env`'s: two simulated runs of one seed pause equally."""

import random


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
