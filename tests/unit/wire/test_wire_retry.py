"""Deadlines and backoff under a clock that the test moves."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from nyala.common.errors import NotFound, Throttled, TimedOut, Unavailable
from nyala.env.env import Env
from nyala.wire.retry import Backoff, Deadline, retrying


@dataclass
class Manual:
    """Clock and tasks in one: sleeping moves the clock."""

    now_us: int = 0
    slept: list[float] = field(default_factory=list)

    def monotonic_us(self) -> int:
        return self.now_us

    async def sleep_ms(self, duration_ms: float) -> None:
        self.slept.append(duration_ms)
        self.now_us += int(duration_ms * 1000)


def env(manual, seed=1):
    return Env(
        cast("Any", manual),
        random.Random(seed),
        cast("Any", None),
        cast("Any", manual),
        cast("Any", None),
    )


def test_a_deadline_counts_down_to_an_error_that_tells_the_last_reason():
    manual = Manual()
    deadline = Deadline(cast("Any", manual), 100)
    assert (deadline.remaining_ms(), deadline.attempt_ms(40), deadline.attempt_ms(400)) == (
        100,
        40,
        100,
    )
    manual.now_us = 99_000
    deadline.check("writing")
    manual.now_us = 100_000
    assert (deadline.remaining_ms(), deadline.attempt_ms(40)) == (0, 1)
    with pytest.raises(
        TimedOut, match=r"gave up writing after 100 ms; the last attempt .* no leader"
    ):
        deadline.check("writing", Unavailable("no leader"))


def test_pauses_double_within_their_bounds_and_begin_anew():
    backoff = Backoff(random.Random(3), 10, 100)
    for bound in (10, 20, 40, 80, 100, 100):
        assert (bound + 1) // 2 <= backoff.next_ms() <= bound
    backoff.reset()
    assert backoff.next_ms() <= 10
    seeds = [[Backoff(random.Random(s), 1000, 1000).next_ms() for _ in range(5)] for s in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2]


def test_retryable_errors_are_retried_and_others_are_not():
    manual = Manual()
    outcomes: list[Exception | str] = [
        Unavailable("x"),
        Throttled("y", {"retry_after_ms": "250"}),
        "done",
    ]

    async def attempt():
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    deadline = Deadline(cast("Any", manual), 1000)
    assert asyncio.run(retrying(env(manual), deadline, "testing", attempt)) == "done"
    assert manual.slept[1] == 250  # as the server asked
    outcomes[:] = [NotFound("no table t")]
    with pytest.raises(NotFound):
        asyncio.run(retrying(env(manual), deadline, "testing", attempt))


def test_retrying_ends_at_the_deadline_with_the_last_reason():
    manual = Manual()

    async def attempt():
        raise Unavailable("nobody leads")

    with pytest.raises(TimedOut, match="nobody leads"):
        asyncio.run(retrying(env(manual), Deadline(cast("Any", manual), 2000), "testing", attempt))
    assert manual.now_us == 2_000_000
    assert 4 <= len(manual.slept) <= 20
