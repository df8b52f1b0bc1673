"""A caller whose work ends at once, without a loop."""

from collections.abc import Callable
from typing import Any


class Immediate:
    """A `Caller` of which nothing suspends."""

    suspends = ended = False

    async def run(self, work: Any) -> Any:
        return await work

    change = finish = run

    async def acquire(self, begin: Callable[[], Any], _release: Any) -> Any:
        return await self.run(begin())

    async def compute(self, fn: Callable[..., Any], *args: Any) -> Any:
        return fn(*args)

    def hand_over(self, take: Callable[[Any], object], item: Any) -> None:
        take(item)

    def iterate(self, items: Any) -> Any:
        return items
