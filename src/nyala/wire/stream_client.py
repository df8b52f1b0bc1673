"""Client of the stream port: a connection for each stream; the port is found by a call to the public port.

The connection of a stream that has ended is used for another one (`streams/idle.py`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from nyala.common import addresses
from nyala.common.errors import NOT_SENT, Corrupt, TimedOut, TooLarge, Unavailable
from nyala.env.request_stream import OnResponse, RequestStream
from nyala.env.rpc import Method, Shape
from nyala.security.credentials import Credentials
from nyala.wire import status
from nyala.wire.connection import dial
from nyala.wire.flight_data import join, split
from nyala.wire.framing import Slabs
from nyala.wire.limits import RpcLimits
from nyala.wire.proto.reads_pb2 import FindStreamsResponse
from nyala.wire.request_stream import RequestStreamClient, RequestStreamEnd
from nyala.wire.stream_end import StreamEnd
from nyala.wire.stream_frames import StreamFrame, StreamFrameKind, open_message
from nyala.wire.streams.idle import IdleConnections

Find = Callable[[str], Awaitable[FindStreamsResponse]]

CLIENT_SLAB_BYTES = 6 << 20
"""Size of the slabs of a client: each holds some batches of the usual size of a scan, 1 MiB."""


class StreamClient:
    """Streams of one process.

    Args:
        limits: limits of messages, and the time-out of connecting.
        find: requests a server's stream port from its public port.
        credentials: of this process, for TLS; None: no encryption.
    """

    def __init__(
        self, limits: RpcLimits, find: Find, credentials: Credentials | None = None
    ) -> None:
        self._limits = limits
        self._credentials = credentials
        self._find = find
        self._found: dict[str, FindStreamsResponse] = {}
        self._slabs = Slabs(CLIENT_SLAB_BYTES)
        self._plain = 0  # open streams but request streams, whose messages are consumed at once
        self._open: dict[StreamEnd, None] = {}
        self._idle = IdleConnections()
        self._closed = False

    async def stream(
        self, address: str, method: Method, request: Any, timeout_ms: int | None
    ) -> AsyncIterator[Any]:
        """Open a stream; see `env.rpc.Rpc.stream`. Leaving the iteration early ends it.

        Args:
            address: host:port.
            method: one of `wire.methods`.
            request: message of the method, or an iterator of them.
            timeout_ms: deadline, from now; None: none.
        """
        end, pump, alarm = self._reused(address, method), None, None
        if end is None:
            end = await self._connect(address, method, self._plain_end)
        ended = False
        self._open[end] = None
        self._plain += 1
        try:
            if timeout_ms is not None:
                late = TimedOut(f"{method.path} at {address} took more than {timeout_ms} ms")
                loop = asyncio.get_running_loop()
                alarm = loop.call_later(timeout_ms / 1000, end.fail, late)
            if method.shape is not Shape.SERVER_STREAM:
                pump = asyncio.ensure_future(self._pump(end, address, method, request))
            else:
                await self._send(end, address, method, request)
            async for answer in self._answers(end, address, method):
                yield answer
            ended = method.shape is Shape.SERVER_STREAM  # its server has read all that was sent
        finally:
            self._open.pop(end, None)
            self._plain -= 1
            if alarm is not None:
                alarm.cancel()
            if pump is not None:
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)
            found = self._found.get(address)
            if ended and not self._closed and found is not None and found.reuse:
                self._idle.put(address, found.ticket, end)
            else:
                end.fail(_closed(address))
                end.discard()

    async def close(self) -> None:
        """End all streams with Unavailable."""
        self._closed = True
        self._idle.close()
        for end in list(self._open):
            end.fail(Unavailable("the connection was closed by this side"))

    def request_stream(
        self, address: str, method: Method, on_response: OnResponse
    ) -> RequestStream:
        """Open a stream for requests to a REQUEST_STREAM method; see `env.rpc.Rpc.request_stream`.

        Args:
            address: host:port.
            method: one of `wire.methods`.
            on_response: called with each response, or with the error that ended the stream.
        """

        async def connect(take: Callable[[StreamFrame | None], None]) -> StreamEnd:
            limit = self._limits.message_bytes
            end = await self._connect(
                address, method, lambda: RequestStreamEnd(limit, take, self._remove)
            )
            if end.failure is None:  # else it was lost before this task ran again
                self._open[end] = None
            return end

        return RequestStreamClient(
            address, method, on_response, connect, lambda: self._forget(address)
        )

    def _remove(self, end: StreamEnd) -> None:
        self._open.pop(end, None)

    def _plain_end(self) -> StreamEnd:
        return StreamEnd(self._limits.message_bytes, self._slabs, self._share)

    def _share(self) -> int:
        """Return the part of `queued_bytes` that one stream may use now."""
        return self._limits.queued_bytes // max(1, self._plain)

    def _forget(self, address: str) -> None:
        self._found.pop(address, None)

    def _reused(self, address: str, method: Method) -> StreamEnd | None:
        """Return a connection whose stream has ended, with the OPEN of the next one sent; None: dial."""
        known = self._found.get(address)
        end = None if known is None else self._idle.take(address, known.ticket)
        if known is not None and end is not None:
            end.write(StreamFrameKind.OPEN, open_message(known.ticket, method.path))
        return end

    async def _connect(
        self, address: str, method: Method, make: Callable[[], StreamEnd]
    ) -> StreamEnd:
        known = self._found.get(address)
        if known is not None:
            try:
                return await self._dial(address, known, method, make)
            except OSError:  # TimeoutError is one; the server may have been started anew
                self._forget(address)
        if self._closed:
            raise _closed(address)
        found = await self._find(address)
        addresses.keep_newest(self._found, address, found)
        try:
            return await self._dial(address, found, method, make)
        except OSError as err:
            self._forget(address)
            raise Unavailable(
                f"the server at {address} cannot be reached: {err}", NOT_SENT
            ) from err

    async def _dial(
        self,
        address: str,
        found: FindStreamsResponse,
        method: Method,
        make: Callable[[], StreamEnd],
    ) -> StreamEnd:
        if self._closed:
            raise _closed(address)
        host, _ = addresses.parse(address)
        timeout_ms = self._limits.connect_timeout_ms
        end = await dial(make, host, found.port, timeout_ms, self._credentials)
        if self._closed:  # while the connection was being made
            end.fail(_closed(address))
            raise _closed(address)
        end.write(StreamFrameKind.OPEN, open_message(found.ticket, method.path))
        return end

    async def _pump(
        self, end: StreamEnd, address: str, method: Method, requests: AsyncIterator[Any]
    ) -> None:
        """Write the requests of a stream, at the pace at which the server reads them."""
        try:
            async for request in requests:
                await self._send(end, address, method, request)
            end.write(StreamFrameKind.END, b"")
        except asyncio.CancelledError:  # also when only the requests' own source was cancelled
            end.fail(_closed(address))
            raise
        except Exception as err:  # the top of this task: the reader of the stream raises it
            if end.failure is None:
                end.fail(status.as_nyala_error(err, method.path))

    async def _send(self, end: StreamEnd, address: str, method: Method, request: Any) -> None:
        whole, body = split(request)
        message = method.encode_request(whole)
        size, limit = len(message) + (0 if body is None else len(body)), self._limits.message_bytes
        if size > limit:
            raise TooLarge(
                f"a request of {size} bytes to {address} is over the limit of {limit} bytes; "
                "send smaller batches",
                {"limit": str(limit), "size": str(size)},
            )
        await end.send(StreamFrameKind.MESSAGE, message, None if body is None else (body,))

    async def _answers(self, end: StreamEnd, address: str, method: Method) -> AsyncIterator[Any]:
        while True:
            try:
                frame = await end.receive()
            except Unavailable as err:
                raise Unavailable(f"the server at {address}: {err.message}") from err
            if frame.kind is StreamFrameKind.END:
                return
            if frame.kind is StreamFrameKind.MESSAGE:
                yield join(method.decode_response(frame.message), frame.body)
                continue
            if frame.kind is not StreamFrameKind.ERROR:
                raise Corrupt(f"{address} sent a frame of kind {frame.kind.name} in a stream")
            error = status.decode_error(frame.message, address)
            if isinstance(error, Unavailable):
                self._forget(address)  # it may be another server
            raise error


def _closed(address: str) -> Unavailable:
    return Unavailable(f"the connection to {address} was closed by this side")
