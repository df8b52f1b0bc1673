"""Raw access to one server: messages, streams and bytes that a correct client never sends."""

import random
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
import pyarrow as pa

from nyala.client.credentials import credentials_for
from nyala.common.errors import NyalaError
from nyala.env.env import system_env
from nyala.env.loop_thread import LoopThread
from nyala.env.rpc import Method
from nyala.security.credentials import Credentials
from nyala.security.files import CredentialFiles
from nyala.wire import flight, methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.flight import FlightData
from nyala.wire.limits import RpcLimits
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import nyala_pb2 as pb
from tests.waiting import later, within

T = TypeVar("T")
ANSWER_MS = round(within(20) * 1_000)
"""Time-out of a call; a server on a busy machine may take seconds."""


class Direct:
    """Sends requests to one server regardless of leadership, as a stale or hostile client does.

    Args:
        masters: of a cluster with certificates, whose client it is; empty: without encryption.
        files: certificate that it uses; None: that of the cluster.
    """

    def __init__(self, masters: str = "", files: CredentialFiles | None = None) -> None:
        self._credentials = credentials_for(masters) if masters else None
        if files is not None:
            self._credentials = Credentials(files)
        self._loop = LoopThread("direct")
        self._rpc = self._loop.run(self._make())

    async def _make(self) -> GrpcRpc:
        rpc = GrpcRpc(RpcLimits(message_bytes=256 << 20), self._credentials)
        self.env = system_env(rpc)
        return rpc

    def __enter__(self) -> "Direct":
        return self

    def __exit__(self, *_: object) -> None:
        async def close() -> None:
            await self.env.tasks.close()
            await self._rpc.close()

        self._loop.run(close())
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of these calls."""
        return self._loop.run(work)

    def ask(self, address: str, method: Method, request: object) -> Any:
        """Call a unary method."""
        return self._loop.run(self._rpc.call(address, method, request, timeout_ms=ANSWER_MS))

    def read(self, address: str, token: pb.ScanToken) -> list[Any]:
        """Run a scan token at one server; return the values of column v."""

        async def run() -> list[Any]:
            ticket = flight_pb2.Ticket(ticket=token.SerializeToString())
            schema, found = None, []
            async for data in self._rpc.stream(
                address, methods.DO_GET, ticket, timeout_ms=ANSWER_MS
            ):
                if schema is None:
                    schema = flight.read_schema(data.header)
                else:
                    batch = flight.read_batch(schema, data.header, data.body)
                    found += batch.column("v").to_pylist()
            return found

        return self._loop.run(run())

    def put(
        self, address: str, schema: pa.Schema, batches: list[FlightData]
    ) -> list[pb.WriteResult]:
        """Send messages in one DoPut; return the results before its end.

        Raises:
            NyalaError: the stream failed.
        """

        async def run() -> list[pb.WriteResult]:
            async def outgoing() -> Any:
                yield flight.schema_data(schema)
                for data in batches:
                    yield data

            stream = self._rpc.stream(address, methods.DO_PUT, outgoing(), timeout_ms=ANSWER_MS)
            return [pb.WriteResult.FromString(a.app_metadata) async for a in stream]

        return self._loop.run(run())


def refusal(call: Any, *args: object) -> str:
    """Return the error code of a refused call, or the text of its result."""
    try:
        return str(call(*args))
    except NyalaError as err:
        return err.code


def raw_call(address: str, path: str, requests: list[bytes], *, streams: bool) -> str:
    """Send raw bytes to a method, past all codecs; return the gRPC status of the answer."""
    with grpc.insecure_channel(address) as channel:
        try:
            if streams:
                for _ in channel.stream_stream(path)(iter(requests), timeout=later(30)):
                    pass
            else:
                channel.unary_unary(path)(requests[0], timeout=later(30))
        except grpc.RpcError as err:
            return str(err.code().name)
    return "OK"


def mutations(raw: bytes, seed: int, count: int) -> list[bytes]:
    """Return damaged copies: bytes flipped, cut, doubled, or set to extreme numbers."""
    rng, made = random.Random(seed), []
    for _ in range(count):
        damaged = bytearray(raw)
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            at = rng.randrange(len(damaged))
            kind = rng.randrange(5)
            if kind == 0:
                damaged[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                damaged[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            elif kind == 2:
                damaged[at : at + 4] = rng.choice(
                    (b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", bytes(4))
                )
            elif kind == 3:
                del damaged[at:]
            else:
                damaged[at:at] = damaged[at : at + rng.randrange(1, 40)]
            if not damaged:
                damaged = bytearray(b"\x00")
        made.append(bytes(damaged))
    return made
