"""A small handler set on a real gRPC server, and batches to send."""

import contextlib
from collections.abc import AsyncIterator

import pyarrow as pa

from nyala.common.errors import NotFound, from_code
from nyala.env.rpc import Handlers
from nyala.wire import flight, methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.flight import FlightData
from nyala.wire.limits import RpcLimits
from nyala.wire.proto import flight_pb2, nyala_pb2
from nyala.wire.server import GrpcServer

BATCH = pa.record_batch(
    {
        "key": pa.array(range(1000), pa.int64()),
        "name": pa.array([f"row {n}" if n % 7 else None for n in range(1000)]),
        "price": pa.array([n / 4 for n in range(1000)]),
        "flag": pa.array([n % 3 == 0 for n in range(1000)]),
    }
)


class BatchStore:
    """Service that stores and returns batches, and raises requested errors."""

    def __init__(self) -> None:
        self.kept: list[pa.RecordBatch] = []
        self.closed_streams = 0

    async def describe(
        self, request: nyala_pb2.DescribeTableRequest
    ) -> nyala_pb2.DescribeTableResponse:
        """`name` is the code of the error to raise; "crash": an unexpected one; "big": a large answer."""
        if request.name == "crash":
            raise RuntimeError("the secret inside")
        if request.name == "big":
            return nyala_pb2.DescribeTableResponse(state="x" * (2 << 20))
        if request.name == "ok":
            return nyala_pb2.DescribeTableResponse(id=request.id, ready=True)
        raise from_code(request.name, "what happened; what to do", {"leader": "abc", "n": "7"})

    async def info(self, descriptor: flight_pb2.FlightDescriptor) -> flight_pb2.FlightInfo:
        if list(descriptor.path) != ["t"]:
            raise NotFound(f"no table {'/'.join(descriptor.path)!r}; the tables are: t")
        endpoint = flight_pb2.FlightEndpoint(ticket=flight_pb2.Ticket(ticket=b"5"))
        return flight_pb2.FlightInfo(
            schema=flight.schema_message(BATCH.schema), flight_descriptor=descriptor,
            endpoint=[endpoint], total_records=-1, total_bytes=-1,
        )  # fmt: skip

    async def get(self, ticket: flight_pb2.Ticket) -> AsyncIterator[FlightData]:
        try:
            yield flight.schema_data(BATCH.schema, b"header")
            for n in range(int(ticket.ticket)):
                yield flight.batch_data(BATCH, b"%d" % n)
        finally:
            self.closed_streams += 1

    async def put(self, requests: AsyncIterator[FlightData]) -> AsyncIterator[flight_pb2.PutResult]:
        schema = None
        async for data in requests:
            if schema is None:
                schema = flight.read_schema(data.header)
                continue
            batch = flight.read_batch(schema, data.header, data.body)
            self.kept.append(batch)
            yield flight_pb2.PutResult(
                app_metadata=bytes(data.app_metadata) + b"+%d" % batch.num_rows
            )

    def handlers(self) -> Handlers:
        return {
            methods.DESCRIBE_TABLE: self.describe, methods.GET_FLIGHT_INFO: self.info,
            methods.DO_GET: self.get, methods.DO_PUT: self.put,
        }  # fmt: skip


@contextlib.asynccontextmanager
async def served(
    store: BatchStore, limits: RpcLimits | None = None, **server: object
) -> AsyncIterator[tuple[GrpcRpc, str]]:
    """A client and the address of a server over `store`."""
    running = GrpcServer(store.handlers(), "127.0.0.1:0", limits, **server)  # type: ignore[arg-type]
    address = await running.start()
    rpc = GrpcRpc()
    try:
        yield rpc, address
    finally:
        await rpc.close()
        await running.stop(0)


async def puts(*batches: FlightData) -> AsyncIterator[FlightData]:
    """The requests of a DoPut stream."""
    for data in batches:
        yield data
