"""Requests with one response each, in any order, over one stream: `Shape.REQUEST_STREAM`.

A transport may implement them itself (`wire/stream_client.py`); this module runs them over any stream. Used
on the event loop only.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from nyala.common.errors import NyalaError, Unavailable

MAX_IN_FLIGHT = 64
"""Maximum requests of one stream whose responses the client has not taken; above it no more are handled."""
OnResponse = Callable[[Any], None]
"""Called with each response, and last, once, with the `NyalaError` that ended the stream."""
RequestHandler = Callable[[Any, Callable[[Any], None]], None]
"""`f(request, answer)` calls `answer` once, at once or later; a NyalaError that it raises ends the stream."""


class RequestStream(Protocol):
    """The client end of such a stream."""

    def send(self, request: Any) -> None:
        """Send a request; it gets no response if the stream has ended."""
        ...

    def end(self) -> None:
        """End the stream once all requests have responses."""
        ...

    def abandon(self) -> None:
        """End the stream at once."""
        ...


class QueuedRequestStream:
    """Client end of request-response pairs over a stream of messages.

    Args:
        open_stream: opens the stream for an iterator of requests.
        on_response: called with each response, and once with the error that ended the stream.
    """

    def __init__(
        self,
        open_stream: Callable[[AsyncIterator[Any]], AsyncIterator[Any]],
        on_response: OnResponse,
    ) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._on_response = on_response
        self._task = asyncio.get_running_loop().create_task(self._run(open_stream))

    def send(self, request: Any) -> None:
        """Send a request; it gets no response if the stream has ended."""
        self._queue.put_nowait(request)

    def end(self) -> None:
        """End the stream once all requests have responses."""
        self._queue.put_nowait(None)

    def abandon(self) -> None:
        """End the stream at once."""
        self._task.cancel()

    async def _requests(self) -> AsyncIterator[Any]:
        while (request := await self._queue.get()) is not None:
            yield request

    async def _run(self, open_stream: Callable[[AsyncIterator[Any]], AsyncIterator[Any]]) -> None:
        error: NyalaError = Unavailable("the stream ended")
        try:
            async for answer in open_stream(self._requests()):
                self._on_response(answer)
        except NyalaError as err:
            error = err
        finally:
            self._on_response(error)


async def responses_to(handler: RequestHandler, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Yield the responses to requests as they arrive; ends once all requests have responses.

    No more than `MAX_IN_FLIGHT` requests are handled whose responses are not taken.
    """
    answers: asyncio.Queue[Any] = asyncio.Queue()
    room = asyncio.Semaphore(MAX_IN_FLIGHT)
    asked = 0

    async def pump() -> None:
        nonlocal asked
        try:
            async for request in requests:
                await room.acquire()
                asked += 1
                handler(request, answers.put_nowait)
            answers.put_nowait(None)
        except Exception as err:  # the top of this task: the consumer of the responses raises it
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
                room.release()
    finally:
        pumping.cancel()
