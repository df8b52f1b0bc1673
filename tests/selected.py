"""Which parameters of a test the gate runs.

A test with many seeds, places of a crash or clocks runs with the first of them in the gate, and with all in
`./run test --full`.
"""

from collections.abc import Iterable
from typing import Any

import pytest


def first(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Return the parameters of a test, all but the first `count` marked `full`."""
    return [
        value if number < count else pytest.param(*_parts(value), marks=pytest.mark.full)
        for number, value in enumerate(values)
    ]


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
