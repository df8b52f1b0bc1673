"""Arrow Flight service: DoPut streams of batches, DoGet of scan tokens.

Batches of one DoPut start in the order of their arrival and may be answered in another; at most
`MAX_IN_FLIGHT` are in flight, or have results that the client has not taken, so that back-pressure slows
down a fast client, and one that does not read.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pyarrow as pa

from nyala.common.errors import InvalidArgument, NyalaError, OutcomeUnknown
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.security.identity import user_name
from nyala.security.limits.shares import Shares
from nyala.tserver.scans.scanners import Scanners
from nyala.tserver.write_path import WritePath
from nyala.wire import flight, methods, status
from nyala.wire.flight_data import FlightData
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 64
KEEPALIVE_MS = 250
"""Milliseconds without a batch after which a scan sends an empty one, so that clients do not time out."""


class FlightService:
    """Handlers of Arrow Flight on a tablet server. Used on the event loop only.

    Args:
        env: tasks.
        writes: executes batches.
        scanners: run scans.
        scans: shares of users in the open scans.
    """

    def __init__(self, env: Env, writes: WritePath, scanners: Scanners, scans: Shares) -> None:
        self._env = env
        self._scans = scans
        self._writes = writes
        self._scanners = scanners

    def handlers(self) -> Handlers:
        """Return the handlers of this service."""
        return {methods.DO_PUT: self.do_put, methods.DO_GET: self.do_get}

    async def do_get(self, ticket: flight_pb2.Ticket) -> AsyncIterator[FlightData]:
        """Run the scan token in a ticket."""
        token = pb.ScanToken()
        try:
            token.MergeFromString(ticket.ticket)
        except Exception as err:  # protobuf's DecodeError; any error is the client's
            raise InvalidArgument(
                f"the ticket is not a nyala.v1.ScanToken: {err}; make it with the client's scan API"
            ) from err
        with self._scans.hold(user_name()):
            async for data in _with_keepalives(self._scanners.run(token)):
                yield data

    async def do_put(
        self, requests: AsyncIterator[FlightData]
    ) -> AsyncIterator[flight_pb2.PutResult]:
        """Write the batches of a stream; yield a `WriteResult` for each, as metadata of a PutResult."""
        results: asyncio.Queue[pb.WriteResult | NyalaError | None] = asyncio.Queue()
        room = asyncio.Semaphore(MAX_IN_FLIGHT)
        pump = self._env.tasks.spawn(self._pump(requests, results, room), "put stream")
        try:
            while (result := await results.get()) is not None:
                if isinstance(result, NyalaError):
                    raise result
                yield flight_pb2.PutResult(
                    app_metadata=result.SerializeToString(deterministic=True)
                )
                room.release()
        finally:
            pump.cancel()

    async def _pump(
        self,
        requests: AsyncIterator[FlightData],
        results: "asyncio.Queue[pb.WriteResult | NyalaError | None]",
        room: asyncio.Semaphore,
    ) -> None:
        """Read the stream, start a write for each batch, and end the results after the last one.

        Args:
            requests: the stream.
            results: of its batches.
            room: a place for each batch, which is free again when the client has taken its result.
        """
        schema: pa.Schema | None = None
        under_way: dict[asyncio.Task[object], None] = {}

        async def one(chosen: pa.Schema, data: FlightData) -> None:
            try:
                results.put_nowait(await self._writes.write(chosen, data))
            except NyalaError as err:
                results.put_nowait(err)
            except Exception as err:  # the client waits for a result of this batch
                log.error("a batch failed with an internal error", exc_info=err)
                results.put_nowait(_internal(data, err))

        try:
            async for data in requests:
                if schema is None:
                    schema = flight.read_schema(data.header)
                    continue
                await room.acquire()
                task = self._env.tasks.spawn(one(schema, data), "put batch")
                under_way[task] = None
                task.add_done_callback(lambda done: under_way.pop(done, None))
            await asyncio.gather(*under_way)
            results.put_nowait(None)
        except NyalaError as err:
            results.put_nowait(err)


def _internal(data: FlightData, err: Exception) -> pb.WriteResult:
    """Return the result of a batch that failed with an internal error."""
    header = pb.WriteHeader.FromString(bytes(data.app_metadata))
    failure = OutcomeUnknown(
        f"tablet {header.tablet_id}: internal error of this server ({type(err).__name__}); the "
        "batch may or may not take effect; see the server's log"
    )
    return pb.WriteResult(request=header.request, error=status.to_proto(failure))


async def _with_keepalives(items: AsyncIterator[FlightData]) -> AsyncIterator[FlightData]:
    """Yield a scan's messages; while the next one takes long, yield empty batches.

    None is sent before the schema, the first message: until then the server may not be able to answer at all.
    """
    first: FlightData | None = None
    coming: asyncio.Future[FlightData | None] | None = None
    try:
        while True:
            coming = asyncio.ensure_future(_next(items))
            while first is not None and not await _within(coming, KEEPALIVE_MS):
                schema = flight.read_schema(first.header)
                yield flight.batch_data(pa.RecordBatch.from_pylist([], schema=schema))
            if (data := await coming) is None:
                return
            first = first or data
            yield data
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()


async def _next(items: AsyncIterator[FlightData]) -> FlightData | None:
    try:
        return await anext(items)
    except StopAsyncIteration:
        return None


async def _within(coming: "asyncio.Future[FlightData | None]", time_ms: int) -> bool:
    """Wait for a message for at most `time_ms`; return whether it, or an error, is available."""
    done = asyncio.Event()
    coming.add_done_callback(lambda _: done.set())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(time_ms / 1000):
            await done.wait()
    return coming.done()
