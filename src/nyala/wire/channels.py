"""gRPC client: `env.rpc.Rpc` over gRPC channels, one per address; streams use the stream port.

Messages are encoded and decoded by the codecs of the `Method`, so that gRPC and the simulator carry the same
bytes; every failure is raised as a `NyalaError`. Runs on one event loop.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc

from nyala.common import addresses
from nyala.common.errors import NOT_SENT, NyalaError, TimedOut, TooLarge, Unavailable
from nyala.env.request_stream import OnResponse, RequestStream
from nyala.env.rpc import Method, Shape
from nyala.security.credentials import Credentials
from nyala.wire import methods, status
from nyala.wire.connection import connect
from nyala.wire.limits import RpcLimits
from nyala.wire.proto.reads_pb2 import FindStreamsRequest, FindStreamsResponse
from nyala.wire.stream_client import StreamClient
from nyala.wire.streams.calls import CallClient


class Channels:
    """gRPC channels, one per address; above a number, those that were not used for the longest time close.

    When the files of the credentials have changed, calls use new channels; those in flight end on the old.

    Args:
        limits: limits of messages and connections.
        credentials: of this process, for TLS; None: no encryption.
    """

    def __init__(self, limits: RpcLimits, credentials: Credentials | None = None) -> None:
        self._limits = limits
        self._credentials = credentials
        self._channels: dict[str, Any] = {}
        self._calls: Counter[Any] = Counter()  # of each channel
        self._version = 0 if credentials is None else credentials.version
        self._replaced: list[Any] = []  # channels with an earlier certificate

    @contextlib.asynccontextmanager
    async def use(self, address: str) -> AsyncIterator[Any]:
        """Yield the channel to an address; it is not closed meanwhile, except by `close`."""
        if self._credentials is not None:
            self._credentials.refresh()
            if self._credentials.version != self._version:
                self._version = self._credentials.version
                self._replaced += (
                    self._channels.values()
                )  # they would connect again with the old one
                self._channels.clear()
        channel = self._channels.pop(address, None)
        if channel is None:
            channel = self._open(address)
        self._channels[address] = channel  # the newest
        self._calls[channel] += 1
        try:
            yield channel
        finally:
            self._calls[channel] -= 1
            if not self._calls[channel]:
                del self._calls[channel]
            await self._close_unused()

    def _open(self, address: str) -> Any:
        target = addresses.join(*addresses.parse(address))
        options = self._limits.channel_options()
        if self._credentials is None:
            return grpc.aio.insecure_channel(target, options=options)
        pem = self._credentials.pem
        tls = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
        return grpc.aio.secure_channel(target, tls, options=options)

    async def _close_unused(self) -> None:
        ended = [c for c in self._replaced if c not in self._calls]
        self._replaced = [c for c in self._replaced if c in self._calls]
        for channel in ended:
            await channel.close()
        while len(self._channels) > addresses.KEPT:
            unused = (a for a, c in self._channels.items() if c not in self._calls)
            address = next(unused, None)
            if address is None:
                return
            await self._channels.pop(address).close()

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels = [*self._channels.values(), *self._replaced], {}
        self._replaced = []
        for channel in channels:
            await channel.close()


class GrpcRpc:
    """Calls over gRPC. Create it on the loop that uses it; `await close()` at the end.

    Args:
        limits: limits of messages and connections.
        credentials: of this process, for TLS; None: no encryption.
    """

    def __init__(
        self, limits: RpcLimits | None = None, credentials: Credentials | None = None
    ) -> None:
        self._limits = limits or RpcLimits()
        self._credentials = credentials
        self._channels = Channels(self._limits, credentials)
        self._streams = StreamClient(self._limits, self._find, credentials)
        self._calls = CallClient(
            lambda address, on_response: self._streams.request_stream(
                address, methods.CALL, on_response
            ),
            self._limits.message_bytes,
        )
        self._closed = False

    async def call(self, address: str, method: Method, request: Any, *, timeout_ms: int) -> Any:
        """Send one request and return its response; see `env.rpc.Rpc.call`.

        Args:
            address: host:port.
            method: one of `wire.methods`.
            request: message of the method, or an iterator of them.
            timeout_ms: deadline, from now; None: none.
        """
        assert method.shape is Shape.UNARY, f"{method.path} is a stream"
        if method in methods.STREAMED:
            return await self._calls.call(address, method, request, timeout_ms)
        raw = self._encode(address, method, request)
        if self._closed:
            raise _closed(address)
        try:
            async with self._channels.use(address) as channel:
                callable_ = channel.unary_unary(f"/{method.path}")
                answer = await callable_(raw, timeout=timeout_ms / 1000)
        except grpc.aio.AioRpcError as err:
            raise status.from_rpc_error(err, address, method.path) from None
        except asyncio.CancelledError:
            if _task_is_cancelled():
                raise
            raise _closed(address) from None
        return method.decode_response(answer)

    def stream(
        self, address: str, method: Method, request: Any, *, timeout_ms: int | None = None
    ) -> AsyncIterator[Any]:
        """Open a stream; see `env.rpc.Rpc.stream`. Leaving the iteration early ends it.

        Args:
            address: host:port.
            method: one of `wire.methods`.
            request: message of the method, or an iterator of them.
            timeout_ms: deadline, from now; None: none.
        """
        assert method.shape is not Shape.UNARY, f"{method.path} is no stream"
        return self._streams.stream(address, method, request, timeout_ms)

    def request_stream(
        self, address: str, method: Method, on_response: OnResponse
    ) -> RequestStream:
        """Open a stream for requests to a REQUEST_STREAM method; see `env.rpc.Rpc.request_stream`.

        Args:
            address: host:port.
            method: one of `wire.methods`.
            on_response: called with each response, or with the error that ended the stream.
        """
        assert method.shape is Shape.REQUEST_STREAM, f"{method.path} is not a REQUEST_STREAM method"
        return self._streams.request_stream(address, method, on_response)

    async def _find(self, address: str) -> FindStreamsResponse:
        """Return the stream port of a server.

        The time of gRPC to connect has the handshake in it, in which a slow end is alive. So the address is
        tried by TCP meanwhile.
        """
        connect_ms, whole_ms = self._limits.connect_timeout_ms, self._limits.handshake_ms
        timeout_ms = connect_ms if self._credentials is None else max(connect_ms, whole_ms)
        calling = asyncio.ensure_future(
            self.call(address, methods.FIND_STREAMS, FindStreamsRequest(), timeout_ms=timeout_ms)
        )
        try:
            try:
                found = await asyncio.wait_for(asyncio.shield(calling), connect_ms / 2000)
            except TimeoutError:
                host, port = addresses.parse(address)
                (await connect(host, port, connect_ms // 2)).close()
                found = await calling
        except TimedOut as err:  # nothing of the stream itself was sent
            raise Unavailable(err.message) from err
        except OSError as err:  # TimeoutError is one
            raise Unavailable(
                f"the server at {address} cannot be reached within {connect_ms} ms: {err}", NOT_SENT
            ) from err
        finally:
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
        assert isinstance(found, FindStreamsResponse), f"{type(found)} in answer to where"
        return found

    async def close(self) -> None:
        """Close all channels; calls in flight end as Unavailable."""
        self._closed = True
        await self._streams.close()
        await self._channels.close()

    def _encode(self, address: str, method: Method, request: Any) -> bytes:
        raw = method.encode_request(request)
        limit = self._limits.message_bytes
        if len(raw) > limit:
            raise TooLarge(
                f"a request of {len(raw)} bytes to {address} is over the limit of {limit} bytes; "
                "send smaller batches",
                {"limit": str(limit), "size": str(len(raw))},
            )
        return raw


def _task_is_cancelled() -> bool:
    """Return True if the current task is being cancelled, rather than only the call that it awaits."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _closed(address: str) -> NyalaError:
    return Unavailable(f"the connection to {address} was closed by this side")
