"""One simulated stream: two ordered pipes with a window, as a gRPC stream over TCP behaves.

Loss only delays; a cut stalls the pipes, and after `STALL_US` breaks the stream. When either end
ends or closes, the other is notified if the link is up.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any
from zlib import crc32

from nyala.common.errors import NyalaError, TimedOut, Unavailable
from nyala.env.request_stream import responses_to
from nyala.env.rpc import Method, Shape
from nyala.wire.proto.nyala_pb2 import Error
from nyala.wire.status import from_proto, to_proto
from tests.sim.world.loop import Incarnation
from tests.sim.world.network import Endpoint, SimNetwork

WINDOW = 16
STALL_US = 10_000_000
RETRY_US = 200_000


class Pipe:
    """Messages in order from one process to another."""

    def __init__(self, network: SimNetwork, source: str, broken: Callable[[], None]) -> None:
        self._network = network
        self._source = source
        self.target = ""
        self.sender: Incarnation | None = None
        self._broken = broken
        self._ways: deque[bytes] = deque()
        self._arrived: deque[bytes] = deque()
        self._readers: deque[asyncio.Future[None]] = deque()
        self._writers: deque[asyncio.Future[None]] = deque()
        self._error: NyalaError | None = None
        self._stalled_us = 0

    async def send(self, payload: bytes) -> None:
        """Send one message; waits while the window is full."""
        while self._error is None and len(self._ways) + len(self._arrived) >= WINDOW:
            future = self._network.loop.create_future()
            self._writers.append(future)
            await future
        if self._error is not None:
            raise self._error
        self._ways.append(payload)
        if len(self._ways) == 1:
            self._network.after(self._network.draw_delay_us(), self._deliver)

    async def receive(self) -> bytes:
        """Return the next message."""
        while not self._arrived:
            if self._error is not None:
                raise self._error
            future = self._network.loop.create_future()
            self._readers.append(future)
            await future
        payload = self._arrived.popleft()
        _wake(self._writers)
        return payload

    def fail(self, error: NyalaError) -> None:
        """Break: senders fail now, the receiver after what has arrived."""
        if self._error is None:
            self._error = error
            self._ways.clear()
            for futures in (self._readers, self._writers):
                while futures:
                    _wake(futures)

    def _deliver(self) -> None:
        if self._error is not None or not self._ways:
            return
        network = self._network
        if self._stalled_us and self.sender is not None and self.sender.dead:
            return  # no sender is left to repeat it
        if not network.passes(self._source, self.target):
            self._stalled_us += RETRY_US
            if self._stalled_us > STALL_US:
                network.trace.note("stream_stalled", f"{self._source} -> {self.target}")
                self._broken()
            else:
                network.after(RETRY_US, self._deliver)
            return
        if not network.copies():  # TCP sends it again
            self._stalled_us += 1
            network.trace.counts["stream_resent"] += 1
            network.after(RETRY_US, self._deliver)
            return
        self._stalled_us = 0
        payload = self._ways.popleft()
        note = f"{self._source} -> {self.target} {len(payload)} {crc32(payload):08x}"
        network.trace.note("stream_message", note)
        self._arrived.append(payload)
        _wake(self._readers)
        if self._ways:
            network.after(network.draw_delay_us(), self._deliver)


class Stream:
    """One call of a SERVER_STREAM or BIDI method."""

    def __init__(
        self,
        network: SimNetwork,
        source: str,
        incarnation: Incarnation,
        address: str,
        method: Method,
    ) -> None:
        self._network = network
        self._source = source
        self._incarnation = incarnation
        self._address = address
        self._method = method
        self._up = Pipe(network, source, self._broke)
        self._up.sender = incarnation
        self._down = Pipe(network, "", self._broke)
        self._down.target = source
        self._server: asyncio.Task[None] | None = None
        self._endpoint: Endpoint | None = None
        self._stalls = 0

    async def run(self, request: Any, timeout_ms: int | None) -> AsyncIterator[Any]:
        """The client's side: send `request` (or what it yields), yield the responses."""
        network, timer = self._network, None
        network.trace.note("stream", f"{self._source} -> {self._address} {self._method.path}")
        network.when_dead(self._incarnation, self, self._client_left)
        network.after(network.draw_delay_us(), self._connect)
        if timeout_ms is not None:
            timer = network.after(timeout_ms * 1000, self._expire, timeout_ms)
        pump = network.loop.create_task(self._pump(request))
        try:
            while (payload := await self._down.receive())[:1] != b".":
                if payload[:1] == b"-":
                    raise from_proto(Error.FromString(payload[1:]))
                yield self._method.decode_response(payload[1:])
        finally:
            if timer is not None:
                timer.cancel()
            pump.cancel()
            network.forget(self._incarnation, self)
            network.after(network.draw_delay_us(), self._client_left)

    async def _pump(self, request: Any) -> None:
        try:
            if self._method.shape is Shape.SERVER_STREAM:
                await self._up.send(b"+" + self._method.encode_request(request))
            else:
                async for message in request:
                    await self._up.send(b"+" + self._method.encode_request(message))
            await self._up.send(b".")
        except NyalaError as err:
            self._down.fail(err)

    def _connect(self) -> None:
        network = self._network
        owner = network.owner(self._address)
        if owner is not None and not network.passes(self._source, owner):
            self._stalls += 1
            if self._stalls * RETRY_US > STALL_US:
                self._broke()
            else:
                network.after(RETRY_US, self._connect)
            return
        endpoint = network.endpoint(self._address)
        if endpoint is None:
            network.after(network.draw_delay_us(), self._broke)
            return
        self._endpoint = endpoint
        self._up.target = self._down._source = endpoint.name
        self._down.sender = endpoint.incarnation
        network.when_dead(endpoint.incarnation, self, self._server_died)
        network.into(endpoint.incarnation, self._serve, endpoint)

    def _serve(self, endpoint: Endpoint) -> None:
        self._server = self._network.loop.create_task(self._handle(endpoint))

    async def _handle(self, endpoint: Endpoint) -> None:
        handler: Any = endpoint.handlers.get(self._method)
        try:
            if handler is None:
                raise Unavailable(f"{endpoint.name} does not serve {self._method.path}")
            requests = self._requests()
            if self._method.shape is Shape.SERVER_STREAM:
                responses = handler(await anext(requests))
            elif self._method.shape is Shape.REQUEST_STREAM:
                responses = responses_to(handler, requests)
            else:
                responses = handler(requests)
            async with contextlib.aclosing(responses):
                async for response in responses:
                    await self._down.send(b"+" + self._method.encode_response(response))
            await self._down.send(b".")
        except NyalaError as err:
            if not endpoint.incarnation.dead:
                await self._last(b"-" + to_proto(err).SerializeToString(deterministic=True))
        except Exception as err:  # a bug in a handler fails the run and the call
            if endpoint.incarnation.dead:
                return
            endpoint.incarnation.failed(err)
            sent = Error(code="INTERNAL", message=repr(err))
            await self._last(b"-" + sent.SerializeToString())
        finally:
            if not endpoint.incarnation.dead:
                self._network.forget(endpoint.incarnation, self)

    async def _last(self, payload: bytes) -> None:
        try:
            await self._down.send(payload)
        except NyalaError:
            return  # the client has ended

    async def _requests(self) -> AsyncIterator[Any]:
        while (payload := await self._up.receive())[:1] != b".":
            yield self._method.decode_request(payload[1:])

    def _server_died(self) -> None:
        assert self._endpoint is not None
        if self._network.passes(self._endpoint.name, self._source):
            self._broke()
        else:
            self._network.after(STALL_US, self._broke)

    def _client_left(self) -> None:
        if self._endpoint is None or self._network.passes(self._source, self._endpoint.name):
            self._broke()
        else:
            self._network.after(STALL_US, self._broke)

    def _expire(self, timeout_ms: int) -> None:
        self._down.fail(TimedOut(f"{self._method.path} took more than {timeout_ms} ms"))
        self._broke()

    def _broke(self) -> None:
        """Disconnect both ends; the handler is cancelled."""
        if self._server is not None and self._endpoint is not None and not self._server.done():
            self._network.trace.note("stream_broke", f"{self._source} -> {self._endpoint.name}")
            self._network.into(self._endpoint.incarnation, self._server.cancel)
        error = Unavailable(f"the connection to {self._address} broke")
        self._up.fail(error)
        self._down.fail(error)


def _wake(futures: deque[asyncio.Future[None]]) -> None:
    while futures:
        future = futures.popleft()
        if not future.done():
            future.set_result(None)
            return
