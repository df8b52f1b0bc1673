"""Breadth-first search over all states of a small system; the trace to a violation is the shortest one."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TypeVar

S = TypeVar("S", bound=Hashable)


class Broken(AssertionError):
    """A violated rule; the text is the shortest sequence of steps to it."""


@dataclass(slots=True)
class Searched:
    """Result of a search.

    Attributes:
        states: number of states.
        complete: all states within the bounds were reached.
        goals: labels of goals that some state reached.
    """

    states: int
    complete: bool
    goals: set[str]


def search(
    start: S,
    steps: Callable[[S], Iterator[tuple[str, S]]],
    goals: Callable[[S], Iterator[str]] = lambda _: iter(()),
    at_most: int = 1 << 40,
) -> Searched:
    """Visit all states.

    Args:
        start: first state.
        steps: yields label and next state; raises AssertionError where a rule is violated.
        goals: yields labels of what a state has reached, for a check that the search covers them.
        at_most: number of states after which it stops.

    Raises:
        Broken: a rule is violated.
    """
    parents: dict[S, tuple[S, str] | None] = {start: None}
    reached = set(goals(start))
    frontier = [start]
    while frontier and len(parents) < at_most:
        following: list[S] = []
        for state in frontier:
            try:
                for label, after in steps(state):
                    if after not in parents:
                        parents[after] = state, label
                        reached.update(goals(after))
                        following.append(after)
            except AssertionError as err:
                raise Broken(_trace(parents, state, str(err))) from err
        frontier = following
    return Searched(len(parents), not frontier, reached)


def _trace(parents: dict[S, tuple[S, str] | None], state: S, error: str) -> str:
    labels = []
    at = parents[state]
    while at is not None:
        labels.append(at[1])
        at = parents[at[0]]
    return "\n".join([error, *reversed(labels)])
