"""Limits of steps: each is accepted at its limit, and refused above it."""

import pytest

from nyala.common.errors import InvalidArgument, TooLarge
from nyala.journal import steps


def step(*parts: steps.Change, conditions: tuple[steps.Condition, ...] = ()) -> steps.Step:
    return steps.Step(conditions, parts)


APPEND = steps.Append("a", b"")
HELD = steps.KeyVersion("k", 0)


@pytest.mark.parametrize(
    ("at", "above", "error"),
    [
        (step(*[APPEND] * 64), step(*[APPEND] * 65), InvalidArgument),
        (step(APPEND, conditions=(HELD,) * 64), step(APPEND, conditions=(HELD,) * 65), InvalidArgument),
        (step(APPEND), step(conditions=(HELD,)), InvalidArgument),
        (step(steps.Append("a" * 255, b"")), step(steps.Append("a" * 256, b"")), TooLarge),
        (step(steps.Append("é" * 127, b"")), step(steps.Append("é" * 128, b"")), TooLarge),
        (step(steps.DeleteLog("a")), step(steps.DeleteLog("")), InvalidArgument),
        (step(steps.SetKey("k" * 1024, b"")), step(steps.SetKey("k" * 1025, b"")), TooLarge),
        (step(steps.DeleteKey("k")), step(steps.DeleteKey("")), InvalidArgument),
        (step(steps.Append("a", bytes(1 << 20))), step(steps.Append("a", bytes((1 << 20) + 1))), TooLarge),
        (step(steps.SetKey("k", bytes(1 << 18))), step(steps.SetKey("k", bytes((1 << 18) + 1))), TooLarge),
        (
            step(*[steps.Append("a", bytes((1 << 20) - 1))] * 4),
            step(*[steps.Append("a", bytes((1 << 20) - 1))] * 4, steps.DeleteKey("k")),
            TooLarge,
        ),
        (
            step(steps.Append("a", b"", range(6_000)), steps.Invalidate("a", range(4_000))),
            step(steps.Append("a", b"", range(6_000)), steps.Invalidate("a", range(4_001))),
            InvalidArgument,
        ),
    ],
)  # fmt: skip
def test_step_is_accepted_at_each_limit_and_refused_above(at, above, error):
    steps.check(at)
    with pytest.raises(error):
        steps.check(above)
