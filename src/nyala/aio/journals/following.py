"""AsyncFollowing: the events of a tail or a watch, as an async iterator."""

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Generic, Self, TypeVar

from nyala.aio.session import Session
from nyala.client.journal.following import EventWait, check_timeout, pages_until

T = TypeVar("T")


class AsyncFollowing(Generic[T]):
    """An async iterator over events, which ends when it is closed, or when none has come for a while.

    One task iterates; any other of the loop may `close` it. An async context manager.

    Args:
        session: the client.
        pages: pages of events, without end.
        timeout_s: seconds without an event after which the iteration ends; None: it waits without end.

    Raises:
        InvalidArgument: `timeout_s` is no number of seconds.
    """

    def __init__(
        self, session: Session, pages: AsyncGenerator[list[T], None], timeout_s: float | None
    ) -> None:
        check_timeout(timeout_s)
        session.core()
        self._session = session
        self._wait = EventWait()
        self._pages = pages_until(self._wait, pages, timeout_s)
        self._arrived: list[T] = []
        self._step: asyncio.Task[list[T] | None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        """Return the next event, and wait for it; a wait that is cancelled loses none."""
        self._session.core()
        while not self._arrived:
            if self._step is None:
                self._step = asyncio.create_task(self._next_page(), name="events of a journal")
            page = await asyncio.shield(self._step)
            self._step = None
            if page is None:
                raise StopAsyncIteration
            self._arrived = page[::-1]
        return self._arrived.pop()

    async def _next_page(self) -> list[T] | None:
        return await anext(self._pages, None)

    async def close(self) -> None:
        """End the iteration, also one that waits for an event; a second call does nothing."""
        self._wait.end()
        self._arrived = []
        if self._step is not None:
            await asyncio.gather(self._step, return_exceptions=True)
        await self._pages.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
