"""Long-lived DoPut streams: one per server and batch schema, so that a small write costs one round trip.

A batch that was sent and not answered when its stream broke has an unknown outcome; the caller sends
the same bytes again under the same sequence number, which the tablet executes once.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator

import pyarrow as pa

from nyala.common.errors import (
    NOT_SENT,
    NyalaError,
    OutcomeUnknown,
    Rejected,
    TooLarge,
    Unavailable,
)
from nyala.env.env import Env
from nyala.wire import flight, methods
from nyala.wire.flight_data import FlightData
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import nyala_pb2 as pb

MAX_STREAMS = 64
FRAMING_BYTES = 4096
"""Upper limit of the bytes that a message adds to its batch and metadata."""


class PutStream:
    """One open DoPut. Runs on the client's loop.

    Attributes:
        broken: it accepts no more batches.
        silent: its server did not answer a batch in time.
    """

    def __init__(self, env: Env, address: str, schema: pa.Schema) -> None:
        self._address = address
        self._first = flight.schema_data(schema)
        self._queue: asyncio.Queue[FlightData | None] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[pb.WriteResult]] = {}
        self._sizes: dict[int, int] = {}
        self._requests = 0
        self.broken = self.silent = False
        self._task = env.tasks.spawn(self._run(env), f"put stream to {address}")

    @property
    def idle(self) -> bool:
        """True if no batch waits for an answer."""
        return not self._waiting

    async def _outgoing(self) -> AsyncIterator[FlightData]:
        descriptor = flight_pb2.FlightDescriptor(type=flight_pb2.FlightDescriptor.CMD, cmd=b"write")
        yield FlightData(self._first.header, None, b"", descriptor)
        while (data := await self._queue.get()) is not None:
            yield data

    async def _run(self, env: Env) -> None:
        error: NyalaError = Unavailable(f"the write stream to {self._address} ended")
        try:
            async for answer in env.rpc.stream(self._address, methods.DO_PUT, self._outgoing()):
                result = pb.WriteResult.FromString(answer.app_metadata)
                waiting = self._waiting.pop(result.request, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(result)
        except NyalaError as err:
            error = err
        finally:
            self.broken = True
            for request, waiting in self._waiting.items():
                if not waiting.done():
                    waiting.set_exception(self._error_for(error, self._sizes[request]))
            self._waiting.clear()

    def _error_for(self, error: NyalaError, size: int) -> NyalaError:
        """Return the error of one batch of so many bytes when its stream has ended.

        If the batch itself exceeds a limit, the error is its own. Otherwise it may have been executed, and is
        sent again on another stream.
        """
        if isinstance(error, TooLarge):
            limit = error.details.get("limit", "")
            own_error = not limit.isdigit() or size + FRAMING_BYTES > int(limit)
        else:
            own_error = isinstance(error, Rejected | Unavailable)
        if own_error:
            return error.another()
        return OutcomeUnknown(f"the write stream to {self._address} broke: {error.message}")

    async def put(
        self, header: pb.WriteHeader, parts: tuple[memoryview, memoryview], timeout_ms: int
    ) -> pb.WriteResult:
        """Send one batch and wait for its result.

        Args:
            header: what to do with it; `request` and `timeout_ms` are set here.
            parts: `flight.batch_parts` of the batch; the same ones at every try.
            timeout_ms: after it the outcome is unknown.

        Raises:
            OutcomeUnknown: no answer in time.
            NyalaError: the stream broke; whether the batch was executed is not known either.
        """
        if self.broken:
            raise Unavailable(f"the write stream to {self._address} is broken", NOT_SENT)
        self._requests += 1
        header.request = self._requests
        header.timeout_ms = timeout_ms
        waiting: asyncio.Future[pb.WriteResult] = asyncio.get_running_loop().create_future()
        metadata = header.SerializeToString()
        self._waiting[header.request] = waiting
        self._sizes[header.request] = len(parts[0]) + len(parts[1]) + len(metadata)
        self._queue.put_nowait(FlightData(parts[0], parts[1], metadata))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await waiting
        except TimeoutError:
            self.silent = True
            raise OutcomeUnknown(
                f"{self._address} did not answer a write within {timeout_ms} ms"
            ) from None
        finally:
            self._waiting.pop(header.request, None)
            self._sizes.pop(header.request, None)

    def close(self) -> None:
        """End the stream; the server finishes the batches that it has received."""
        self.broken = True
        self._queue.put_nowait(None)

    def abandon(self) -> None:
        """Cancel the stream: its server no longer answers."""
        self.broken = True
        self._task.cancel()


class PutStreams:
    """The open streams of one client, the least recently used closed first."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._open: OrderedDict[tuple[str, bytes], PutStream] = OrderedDict()

    def get(self, address: str, schema: pa.Schema) -> PutStream:
        """Return an open stream to a server for batches of a schema, opening it if needed."""
        key = (address, schema.serialize().to_pybytes())
        stream = self._open.get(key)
        if stream is None or stream.broken:
            stream = self._open[key] = PutStream(self._env, address, schema)
        self._open.move_to_end(key)
        if len(self._open) > MAX_STREAMS:
            self._drop_one_idle(stream)
        return stream

    def _drop_one_idle(self, wanted: PutStream) -> None:
        for key, stream in self._open.items():
            if stream.idle and stream is not wanted:
                stream.close()
                del self._open[key]
                return

    def abandon(self, address: str) -> None:
        """Cancel every stream to a server that no longer answers."""
        for key in [k for k in self._open if k[0] == address]:
            self._open.pop(key).abandon()

    def close(self) -> None:
        """End all streams."""
        for stream in self._open.values():
            stream.close()
        self._open.clear()
