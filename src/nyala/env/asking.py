"""Requests that are answered one by one, in any order, over one long stream: `Shape.ASK`.

A carrier may have a way of its own for them (`wire/stream_client.py`); here is how they go over any stream.
On the loop only.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from nyala.common.errors import NyalaError, Unavailable

Hear = Callable[[Any], None]
"""Takes each answer, and last of all, once, the `NyalaError` with which the stream ended."""
AskHandler = Callable[[Any, Callable[[Any], None]], None]
"""`f(request, answer)`: calls `answer` once, now or later. It raises NyalaError for what ends the stream."""


class Asking(Protocol):
    """The asking end of a stream."""

    def ask(self, request: Any) -> None:
        """Send a request; nothing is heard of it once the stream has ended."""
        ...

    def end(self) -> None:
        """End the stream once everything asked is answered."""
        ...

    def abandon(self) -> None:
        """End it at once."""
        ...


class StreamAsking:
    """Asks over a stream of messages.

    Args:
        open_stream: given the requests, opens it.
        hear: see `Hear`.
    """

    def __init__(
        self, open_stream: Callable[[AsyncIterator[Any]], AsyncIterator[Any]], hear: Hear
    ) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._hear = hear
        self._task = asyncio.get_running_loop().create_task(self._run(open_stream))

    def ask(self, request: Any) -> None:
        """See `Asking.ask`."""
        self._queue.put_nowait(request)

    def end(self) -> None:
        """See `Asking.end`."""
        self._queue.put_nowait(None)

    def abandon(self) -> None:
        """See `Asking.abandon`."""
        self._task.cancel()

    async def _requests(self) -> AsyncIterator[Any]:
        while (request := await self._queue.get()) is not None:
            yield request

    async def _run(self, open_stream: Callable[[AsyncIterator[Any]], AsyncIterator[Any]]) -> None:
        error: NyalaError = Unavailable("the stream ended")
        try:
            async for answer in open_stream(self._requests()):
                self._hear(answer)
        except NyalaError as err:
            error = err
        finally:
            self._hear(error)


async def answered(handler: AskHandler, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Return the answers to requests as they come; ends once all of them are answered."""
    answers: asyncio.Queue[Any] = asyncio.Queue()
    asked = 0

    async def pump() -> None:
        nonlocal asked
        try:
            async for request in requests:
                asked += 1
                handler(request, answers.put_nowait)
            answers.put_nowait(None)
        except Exception as err:  # the top of this task: whoever takes the answers raises it
            answers.put_nowait(err)

    pumping = asyncio.get_running_loop().create_task(pump())
    ended = False
    try:
        while not ended or asked:
            answer = await answers.get()
            if answer is None:
                ended = True
            elif isinstance(answer, Exception):
                raise answer
            else:
                asked -= 1
                yield answer
    finally:
        pumping.cancel()
