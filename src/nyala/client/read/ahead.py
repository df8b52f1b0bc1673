"""Items of an async generator, the next one fetched while the caller uses the one before."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """An async iterator with one item prefetched, from its first item on. Runs on the client's loop.

    Args:
        items: closed by `aclose`.
    """

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._next: asyncio.Task[tuple[bool, T | None]] | None = None

    def __aiter__(self) -> "Ahead[T]":
        return self

    async def __anext__(self) -> T:
        if self._next is None:
            self._begin()
        assert self._next is not None
        more, item = await self._next
        if not more:
            raise StopAsyncIteration
        self._begin()
        return item  # type: ignore[return-value]

    def _begin(self) -> None:
        self._next = asyncio.get_running_loop().create_task(self._step())

    async def _step(self) -> tuple[bool, T | None]:
        try:
            return True, await anext(self._items)
        except StopAsyncIteration:
            return False, None

    async def aclose(self) -> None:
        """End the generator, with the item that is being fetched."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self._items.aclose()
