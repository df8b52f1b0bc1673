"""`Shape.REQUEST_STREAM` on the stream port, both ends: requests are handled in the read callback.

There are no tasks and queues: they would dominate the cost of a look-up of one row. Used on the loop only.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from nyala.common.errors import Corrupt, NyalaError, TooLarge, Unavailable
from nyala.env.request_stream import MAX_IN_FLIGHT, OnResponse, RequestHandler
from nyala.env.rpc import Method
from nyala.wire import status
from nyala.wire.framing import Slabs
from nyala.wire.stream_end import StreamEnd
from nyala.wire.stream_frames import StreamFrame, StreamFrameKind


class RequestStreamEnd(StreamEnd):
    """The connection of a `RequestStreamClient`.

    Args:
        max_bytes: largest frame accepted.
        take: called with each frame, and with None at the end.
        lost: called with this end when its connection is closed.
    """

    def __init__(
        self,
        max_bytes: int,
        take: Callable[[StreamFrame | None], None],
        lost: Callable[[StreamEnd], None],
    ) -> None:
        super().__init__(max_bytes, Slabs())  # its answers have no bodies
        self._take, self._lost = take, lost

    def on_frame(self, frame: StreamFrame) -> None:
        """Pass the frame to `take`."""
        self._take(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the stream."""
        super().connection_lost(exc)
        self._lost(self)
        self._take(None)


class RequestStreamClient:
    """Client end; see `env.request_stream.RequestStream`.

    Args:
        address: address of the server, for error messages.
        method: method of the requests.
        on_response: called with each response, and once with the error that ended the stream.
        connect: opens the connection.
        lost: called when the server rejects the stream as Unavailable.
    """

    def __init__(
        self,
        address: str,
        method: Method,
        on_response: OnResponse,
        connect: Callable[[Callable[[StreamFrame | None], None]], Awaitable[StreamEnd]],
        lost: Callable[[], None],
    ) -> None:
        self._address = address
        self._method = method
        self._on_response = on_response
        self._lost = lost
        self._end: StreamEnd | None = None
        self._early: list[tuple[StreamFrameKind, bytes]] = []
        self._over = False
        self._task = asyncio.get_running_loop().create_task(self._connect(connect))

    async def _connect(
        self, connect: Callable[[Callable[[StreamFrame | None], None]], Awaitable[StreamEnd]]
    ) -> None:
        try:
            end = await connect(self._take)
        except NyalaError as err:
            self._finish(err)
            return
        except asyncio.CancelledError:
            self._finish(Unavailable(f"the connection to {self._address} was closed by this side"))
            raise
        if self._over:  # ended while it was being made
            end.fail(Unavailable("the client closed its stream of requests"))
            return
        self._end = end
        for kind, message in self._early:
            end.write(kind, message)

    def send(self, request: Any) -> None:
        """Send a request; the response is passed to `on_response`."""
        self._write(StreamFrameKind.MESSAGE, self._method.encode_request(request))

    def end(self) -> None:
        """End the stream once all requests have responses."""
        self._write(StreamFrameKind.END, b"")

    def abandon(self) -> None:
        """End the stream at once."""
        self._task.cancel()
        self._finish(Unavailable(f"the stream to {self._address} was abandoned"))

    def _write(self, kind: StreamFrameKind, message: bytes) -> None:
        if self._end is not None:
            self._end.write(kind, message)
        elif not self._over:
            self._early.append((kind, message))

    def _take(self, frame: StreamFrame | None) -> None:
        if self._over:
            return
        if frame is None:
            self._finish(
                Unavailable(
                    "the stream's connection was closed by the other end before the stream ended"
                )
            )
        elif frame.kind is StreamFrameKind.MESSAGE:
            try:
                answer = self._method.decode_response(frame.message)
            except NyalaError as err:
                self._finish(err)
            else:
                self._on_response(answer)
        elif frame.kind is StreamFrameKind.END:
            self._finish(Unavailable("the stream ended"))
        elif frame.kind is StreamFrameKind.ERROR:
            error = status.decode_error(frame.message, self._address)
            if isinstance(error, Unavailable):
                self._lost()
            self._finish(error)
        else:
            self._finish(Corrupt(f"a frame of kind {frame.kind.name} in a stream"))

    def _finish(self, why: NyalaError) -> None:
        if self._over:
            return
        self._over = True
        end, self._end = self._end, None
        if end is not None:
            end.fail(Unavailable("the client closed its stream of requests"))
        self._on_response(why)


class RequestStreamServer:
    """Server end of one stream.

    At most `MAX_IN_FLIGHT` requests are under way, and none is begun while the client does not take the
    responses: what it has sent by then waits, and nothing more is read from the connection.

    Args:
        connection: connection of the stream.
        method: method of the requests.
        handler: handler of the method.
        ended: called once, with the error or None.
    """

    def __init__(
        self,
        connection: StreamEnd,
        method: Method,
        handler: RequestHandler,
        ended: Callable[[NyalaError | None], None],
    ) -> None:
        self._connection = connection
        self._method = method
        self._handler = handler
        self._ended = ended
        self._in_flight = 0
        self._waiting: deque[StreamFrame] = deque()
        self._last = self._over = self._proceeding = False

    def take(self, frame: StreamFrame) -> None:
        """Handle a request, or the end of the requests, at once or when there is room for it."""
        if self._over:
            return
        if self._waiting or not self._has_room:
            self._waiting.append(frame)
            self._connection.pause_reading()
        else:
            self._handle(frame)

    @property
    def _has_room(self) -> bool:
        return self._in_flight < MAX_IN_FLIGHT and not self._connection.full

    def proceed(self) -> None:
        """Handle requests that wait, as far as there is room, and read further ones after them."""
        if self._proceeding:
            return
        self._proceeding = True
        try:
            while self._waiting and self._has_room:
                self._handle(self._waiting.popleft())
        finally:
            self._proceeding = False
        if not self._waiting:
            self._connection.resume_reading()

    def _handle(self, frame: StreamFrame) -> None:
        if frame.kind is StreamFrameKind.END:
            self._last = True
            self._end_if_done()
            return
        if frame.kind is not StreamFrameKind.MESSAGE:
            self._end(Corrupt(f"a frame of kind {frame.kind.name} where a request belongs"))
            return
        self._in_flight += 1
        try:
            self._handler(self._method.decode_request(frame.message), self._answer)
        except Exception as err:  # the top of a stream: its client receives every failure
            self._end(status.as_nyala_error(err, self._method.path))

    def _answer(self, response: Any) -> None:
        self._in_flight -= 1
        if self._over:
            return
        message, limit = self._method.encode_response(response), self._connection.max_bytes
        if len(message) > limit:
            self._end(
                TooLarge(f"an answer of {len(message)} bytes is over the limit of {limit} bytes")
            )
            return
        self._connection.write(StreamFrameKind.MESSAGE, message)
        self._end_if_done()
        if self._waiting:
            self.proceed()

    def _end_if_done(self) -> None:
        if self._last and not self._in_flight:
            self._end(None)

    def _end(self, why: NyalaError | None) -> None:
        if not self._over:
            self._over = True
            self._waiting.clear()
            self._ended(why)

    def lost(self) -> None:
        """Handle the loss of the connection: later responses are dropped."""
        self._over = True
        self._waiting.clear()
