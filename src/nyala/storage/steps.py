"""Work in steps: generators that yield where other work of the same thread may go first."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Finished(Generic[T]):
    """Result of work whose last step is done."""

    result: T


def advance(steps: Generator[None, None, S]) -> Finished[S] | None:
    """Run one step; return the result if it was the last one, else None."""
    try:
        next(steps)
    except StopIteration as end:
        return Finished(end.value)
    return None


def to_end(steps: Generator[None, None, S]) -> S:
    """Run all steps; return the result."""
    while (finished := advance(steps)) is None:
        pass
    return finished.result
