"""Callers of one target that share requests: the queue behind small writes and point reads."""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

IN_FLIGHT = 2
"""Maximum number of requests of one queue in flight: one on the network, one being executed."""


class RequestQueue(Generic[T]):
    """Callers in order of arrival, and the number of requests in flight. Used on the loop only.

    Args:
        fill: send a further request only once as many callers wait as are in flight: a smaller one would cost
            the server as much, and its callers would come back as few.

    Attributes:
        waiting: callers not sent yet.
        in_flight: requests not answered yet.
    """

    __slots__ = ("_callers_in_flight", "_fill", "in_flight", "waiting")

    def __init__(self, *, fill: bool) -> None:
        self._fill = fill
        self.waiting: deque[T] = deque()
        self.in_flight = self._callers_in_flight = 0

    @property
    def idle(self) -> bool:
        """True if no caller waits and no request is in flight."""
        return not self.waiting and not self.in_flight

    def enqueue(self, caller: T) -> None:
        """Append a caller."""
        self.waiting.append(caller)

    def take_batch(self, choose: Callable[[deque[T]], list[T]]) -> list[T]:
        """Take the callers of the next request.

        Args:
            choose: removes them from the head of `waiting`.

        Returns:
            The callers; empty: no request may be sent now.
        """
        if self.in_flight == IN_FLIGHT:
            return []
        if self._fill and len(self.waiting) < self._callers_in_flight:
            return []
        callers = choose(self.waiting)
        if callers:
            self.in_flight += 1
            self._callers_in_flight += len(callers)
        return callers

    def finished(self, callers: list[T]) -> None:
        """Note that the request of a batch has ended."""
        self.in_flight -= 1
        self._callers_in_flight -= len(callers)
