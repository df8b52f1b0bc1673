"""The calling side of the public port: `env.rpc.Rpc` over gRPC channels, one per address.

Rules: bytes are made and read here by the Method's codecs, so that gRPC and the simulator carry the
same ones; every failure comes out as an error of the tree. Runs on one event loop.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from nyala.common import addresses
from nyala.common.errors import NyalaError, TooLarge, Unavailable
from nyala.env.rpc import Method, Shape
from nyala.wire import status
from nyala.wire.limits import Limits


class GrpcRpc:
    """Calls over gRPC. Make it on the loop that will use it; `await close()` at the end.

    Args:
        limits: of messages and connections.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._channels: dict[str, Any] = {}
        self._closed = False

    async def call(self, address: str, method: Method, request: Any, *, timeout_ms: int) -> Any:
        """Send one request and return its response; see `env.rpc.Rpc.call`."""
        assert method.shape is Shape.UNARY, f"{method.path} is a stream"
        raw = self._encode(address, method, request)
        callable_ = self._channel(address).unary_unary(f"/{method.path}")
        try:
            answer = await callable_(raw, timeout=timeout_ms / 1000)
        except grpc.aio.AioRpcError as err:
            raise status.from_rpc_error(err, address, method.path) from None
        except asyncio.CancelledError:
            if _task_is_cancelled():
                raise
            raise _closed(address) from None
        return method.decode_response(answer)

    async def stream(
        self, address: str, method: Method, request: Any, *, timeout_ms: int | None = None
    ) -> AsyncIterator[Any]:
        """Open a stream; see `env.rpc.Rpc.stream`. Leaving the iteration early cancels it."""
        timeout = None if timeout_ms is None else timeout_ms / 1000
        channel = self._channel(address)
        pump = None
        if method.shape is Shape.SERVER_STREAM:
            raw = self._encode(address, method, request)
            call = channel.unary_stream(f"/{method.path}")(raw, timeout=timeout)
        else:
            assert method.shape is Shape.BIDI, f"{method.path} is no stream"
            call = channel.stream_stream(f"/{method.path}")(timeout=timeout)
            pump = _Pump(self, address, method, call, request)
        try:
            while (answer := await self._read(call, pump, address, method)) is not grpc.aio.EOF:
                yield method.decode_response(answer)
        finally:
            call.cancel()
            if pump is not None:
                await pump.stop()

    async def close(self) -> None:
        """Close all channels; calls in flight end as Unavailable."""
        self._closed = True
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    async def _read(self, call: Any, pump: "_Pump | None", address: str, method: Method) -> Any:
        try:
            answer = await call.read()
        except grpc.aio.AioRpcError as err:
            raise status.from_rpc_error(err, address, method.path) from None
        except asyncio.CancelledError:
            if _task_is_cancelled():
                raise
            if pump is not None and pump.failure is not None:
                raise pump.failure from None
            raise _closed(address) from None
        return answer

    def _channel(self, address: str) -> Any:
        if self._closed:
            raise _closed(address)
        found = self._channels.get(address)
        if found is None:
            target = addresses.join(*addresses.parse(address))
            found = grpc.aio.insecure_channel(target, options=self._limits.channel_options())
            self._channels[address] = found
        return found

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


class _Pump:
    """Writes the requests of a bidirectional stream, at the pace at which the server reads them."""

    def __init__(
        self, rpc: GrpcRpc, address: str, method: Method, call: Any, requests: AsyncIterator[Any]
    ) -> None:
        self.failure: BaseException | None = None
        self._call = call
        self._task = asyncio.ensure_future(self._run(rpc, address, method, requests))

    async def _run(
        self, rpc: GrpcRpc, address: str, method: Method, requests: AsyncIterator[Any]
    ) -> None:
        try:
            async for request in requests:
                raw = rpc._encode(address, method, request)
                try:
                    await self._call.write(raw)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # the server ended the stream; its status tells the reader why
            await self._call.done_writing()
        except Exception as err:  # the top of this task: the reader of the stream raises it
            self.failure = err
            self._call.cancel()
        except asyncio.CancelledError:
            self._call.cancel()  # also when only the requests' own source was cancelled
            raise

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _task_is_cancelled() -> bool:
    """Whether our own task is being cancelled, rather than only the call that it waits for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _closed(address: str) -> NyalaError:
    return Unavailable(f"the connection to {address} was closed by this side")
