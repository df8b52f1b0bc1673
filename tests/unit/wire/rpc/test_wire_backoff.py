"""Pauses between attempts."""

import random

from nyala.wire.backoff import Backoff


def test_backoff_doubles_within_bounds_and_resets():
    backoff = Backoff(random.Random(3), 10, 100)
    for bound in (10, 20, 40, 80, 100, 100):
        assert (bound + 1) // 2 <= backoff.next_ms() <= bound
    backoff.reset()
    assert backoff.next_ms() <= 10
    seeds = [[Backoff(random.Random(s), 1000, 1000).next_ms() for _ in range(5)] for s in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2]
