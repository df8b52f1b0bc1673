"""`env.rpc.Rpc` over the simulated network: the real codecs, the real handlers, no sockets.

A unary request may be lost, duplicated or late, its answer lost. A handler is cancelled when its
caller has ended, as grpc.aio does; a caller gets Unavailable for a dead server if the link back
is open.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any
from zlib import crc32

from nyala.common.errors import NOT_SENT, NyalaError, OutcomeUnknown, TimedOut, Unavailable
from nyala.env.request_stream import OnResponse, QueuedRequestStream, RequestStream
from nyala.env.rpc import Method, Shape
from nyala.wire.proto.nyala_pb2 import Error
from nyala.wire.status import from_proto, to_proto
from tests.sim.world.loop import Incarnation, ProcessDied
from tests.sim.world.network import Endpoint, SimNetwork
from tests.sim.world.stream import Stream


class SimRpc:
    """The calling side of one process.

    Args:
        network: carries the calls.
        name: of the process.
        incarnation: that makes the calls.
    """

    def __init__(self, network: SimNetwork, name: str, incarnation: Incarnation) -> None:
        self._network = network
        self._name = name
        self._incarnation = incarnation

    async def call(self, address: str, method: Method, request: Any, *, timeout_ms: int) -> Any:
        """Send one request to a UNARY method and return its response."""
        assert method.shape is Shape.UNARY, f"{method.path} is no unary method"
        if self._incarnation.dead:
            raise ProcessDied(self._name)
        one = _Call(self._network, self._name, address, method, method.encode_request(request))
        return await one.answer(timeout_ms)

    async def stream(
        self, address: str, method: Method, request: Any, *, timeout_ms: int | None = None
    ) -> AsyncIterator[Any]:
        """Open a stream; see `env.rpc.Rpc.stream`."""
        assert method.shape is not Shape.UNARY, f"{method.path} is a unary method"
        if self._incarnation.dead:
            raise ProcessDied(self._name)
        stream = Stream(self._network, self._name, self._incarnation, address, method)
        async for response in stream.run(request, timeout_ms):
            yield response

    def request_stream(
        self, address: str, method: Method, on_response: OnResponse
    ) -> RequestStream:
        """Open a stream for requests to a REQUEST_STREAM method."""
        return QueuedRequestStream(
            lambda requests: self.stream(address, method, requests), on_response
        )


class _Call:
    """One unary call, seen by the network.

    The client gets the refusal of one copy of a doubled call only if no other copy can be executed: a
    response is definite.
    """

    def __init__(
        self, network: SimNetwork, source: str, address: str, method: Method, payload: bytes
    ) -> None:
        self._network = network
        self._source = source
        self._address = address
        self._method = method
        self._payload = payload
        self._future: asyncio.Future[bytes] = network.loop.create_future()
        self._servers: list[tuple[Endpoint, asyncio.Task[None]]] = []
        self._doubled = False
        self._open = 0  # copies that may be executed yet
        self._refusal: tuple[str, bytes] | None = None
        self._what = f"{source} -> {address} {method.path}"

    async def answer(self, timeout_ms: int) -> Any:
        network = self._network
        network.called[self._source] = None
        copies = network.copies()
        if not network.doubles_calls:
            copies = min(copies, 1)
        self._doubled, self._open = copies > 1, copies
        kind = ("call_lost", "call", "call_doubled")[copies]
        network.trace.note(kind, f"{self._what} {len(self._payload)} {crc32(self._payload):08x}")
        for _ in range(copies):
            network.after(network.draw_delay_us(), self._arrive)
        if not copies and network.rng.random() < 0.5:  # a reset connection is reported
            network.after(network.draw_delay_us() * 2, self._refuse, None)
        timer = network.after(timeout_ms * 1000, self._expire, timeout_ms)
        try:
            return self._method.decode_response(await self._future)
        finally:
            timer.cancel()
            self._leave()

    def _arrive(self) -> None:
        network = self._network
        owner = network.owner(self._address)
        if owner is not None and not network.passes(self._source, owner):
            network.trace.note("call_cut", self._what)
            self._end_copy()
            return
        endpoint = network.endpoint(self._address)
        if endpoint is None:
            sent = None if self._doubled else NOT_SENT
            network.after(network.draw_delay_us(), self._refuse, owner, sent)
        else:
            network.into(endpoint.incarnation, self._serve, endpoint)

    def _serve(self, endpoint: Endpoint) -> None:
        if self._future.cancelled() and not self._servers:
            return
        task = self._network.loop.create_task(self._handle(endpoint))
        self._servers.append((endpoint, task))
        self._network.when_dead(endpoint.incarnation, task, lambda: self._refuse(endpoint.name))
        task.add_done_callback(lambda t: self._network.forget(endpoint.incarnation, t))

    async def _handle(self, endpoint: Endpoint) -> None:
        handler = endpoint.handlers.get(self._method)
        try:
            if handler is None:
                raise Unavailable(f"{endpoint.name} does not serve {self._method.path}")
            response = await handler(self._method.decode_request(self._payload))  # type: ignore[misc, call-arg]
            sent = b"+" + self._method.encode_response(response)
        except NyalaError as err:
            sent = b"-" + to_proto(err).SerializeToString(deterministic=True)
            if not endpoint.incarnation.dead and not isinstance(err, OutcomeUnknown):
                self._refusal = endpoint.name, sent
                self._end_copy()
                return
        except Exception as err:  # a bug in a handler fails the run and the call
            endpoint.incarnation.failed(err)
            sent = b"-" + Error(code="INTERNAL", message=repr(err)).SerializeToString()
        if not endpoint.incarnation.dead:
            self._send_answer(endpoint.name, sent)

    def _end_copy(self) -> None:
        """Record that a copy has no effect; the refusal of one is sent when all have ended so."""
        self._open -= 1
        if not self._open and self._refusal is not None:
            self._send_answer(*self._refusal)

    def _send_answer(self, server: str, sent: bytes) -> None:
        network = self._network
        network.trace.note("answer", f"{self._what} {len(sent)} {crc32(sent):08x}")
        if network.copies():
            network.after(network.draw_delay_us(), self._answered, server, sent)
        else:
            network.trace.note("answer_lost", self._what)

    def _answered(self, server: str, sent: bytes) -> None:
        if not self._network.passes(server, self._source):
            self._network.trace.note("answer_cut", self._what)
            return
        if self._future.done():
            return
        if sent[:1] == b"+":
            self._future.set_result(sent[1:])
        else:
            self._future.set_exception(from_proto(Error.FromString(sent[1:])))

    def _refuse(self, server: str | None, details: Mapping[str, str] | None = None) -> None:
        if server is not None and not self._network.passes(server, self._source):
            return
        if not self._future.done():
            self._network.trace.note("call_refused", self._what)
            self._future.set_exception(Unavailable(f"{self._address} cannot be reached", details))

    def _expire(self, timeout_ms: int) -> None:
        if not self._future.done():
            self._network.trace.note("call_timed_out", self._what)
            self._future.set_exception(
                TimedOut(f"{self._address} did not answer {self._method.path} in {timeout_ms} ms")
            )

    def _leave(self) -> None:
        """Cancel the call at the servers that still execute it."""
        self._future.cancel()
        for endpoint, task in self._servers:
            if not task.done() and self._network.passes(self._source, endpoint.name):
                self._network.after(
                    self._network.draw_delay_us(),
                    self._network.into,
                    endpoint.incarnation,
                    task.cancel,
                )
