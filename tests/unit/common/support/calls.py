"""Counts Python calls, to check that there are none per row."""

import sys
from collections.abc import Callable
from typing import Any


class Counter:
    """Counts the Python and C functions that the interpreter calls on this thread within a `with`."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> "Counter":
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: Any, event: str, argument: Any) -> None:
        self.calls += event in ("call", "c_call")


def count(work: Callable[[], object]) -> int:
    """Return the number of functions that `work` calls after warm-up."""
    work()
    with Counter() as counter:
        work()
    return counter.calls
