"""Following: the events of a tail or a watch, for one thread at a time; any thread may end it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from nyala.client.connection import Connection
from nyala.common.errors import InvalidArgument

T = TypeVar("T")
MAX_TIMEOUT_S = 1 << 31


class Following(Iterator[T], Generic[T]):
    """An iterator over events, which ends when it is closed, or when none has come for a while.

    Args:
        connection: runs the coroutines.
        pages: pages of events, without end.
        timeout_s: seconds without an event after which the iteration ends; None: it waits without end.

    Raises:
        InvalidArgument: `timeout_s` is no number of seconds.
    """

    def __init__(
        self, connection: Connection, pages: AsyncGenerator[list[T], None], timeout_s: float | None
    ) -> None:
        check_timeout(timeout_s)
        self._connection = connection
        self._wait = EventWait()
        self._items = connection.iterate_pages(pages_until(self._wait, pages, timeout_s))

    def __next__(self) -> T:
        return next(self._items)

    def close(self) -> None:
        """End the iteration, also that of another thread that waits for an event; again: without effect."""
        if not self._connection.closed:
            self._connection.run(self._end())
        with contextlib.suppress(ValueError):  # another thread is in it, and ends
            self._items.close()  # type: ignore[attr-defined]

    async def _end(self) -> None:
        self._wait.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def check_timeout(timeout_s: Any) -> None:
    """Check the longest wait for an event.

    Raises:
        InvalidArgument: it is no number of seconds, and not None.
    """
    usable = isinstance(timeout_s, int | float) and 0 <= timeout_s < MAX_TIMEOUT_S
    if timeout_s is not None and not usable:
        raise InvalidArgument(f"timeout={timeout_s!r}: give a number of seconds from 0 on, or None")


class EventWait:
    """The wait for the next page, which ends when the iteration does.

    Attributes:
        over: the iteration has ended.
        step: the wait.
    """

    def __init__(self) -> None:
        self.over = False
        self.step: asyncio.Future[Any] | None = None

    def end(self) -> None:
        """End the iteration."""
        self.over = True
        if self.step is not None:
            self.step.cancel()


async def pages_until(
    wait: EventWait, pages: AsyncGenerator[list[T], None], timeout_s: float | None
) -> AsyncGenerator[list[T], None]:
    """Yield pages until the iteration is ended, or none has come for a while.

    Args:
        wait: the wait for each page.
        pages: the pages; closed at the end.
        timeout_s: longest wait for a page, in seconds; None: no limit.
    """
    try:
        while not wait.over:
            step = wait.step = asyncio.ensure_future(anext(pages))
            try:
                async with asyncio.timeout(timeout_s):
                    page = await step
            except TimeoutError:
                return
            except asyncio.CancelledError:
                if wait.over:
                    return
                raise
            yield page
    finally:
        if wait.step is not None:
            wait.step.cancel()
            await asyncio.gather(wait.step, return_exceptions=True)
        await pages.aclose()
