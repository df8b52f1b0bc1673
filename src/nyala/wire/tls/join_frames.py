"""Frames of the join port: the length of a message in four bytes, then the message."""

import asyncio
import struct

from google.protobuf.message import DecodeError

from nyala.common.errors import Corrupt, TooLarge
from nyala.wire.proto import access_pb2 as pb

_LENGTH = struct.Struct("<I")
MAX_BYTES = 64 << 10
EXCHANGE_S = 10.0
"""Time, in seconds, for a request and its answer."""


async def send(writer: asyncio.StreamWriter, message: pb.JoinRequest | pb.JoinResponse) -> None:
    """Send a message."""
    raw = message.SerializeToString()
    writer.write(_LENGTH.pack(len(raw)) + raw)
    await writer.drain()


async def receive_request(reader: asyncio.StreamReader) -> pb.JoinRequest:
    """Return the request of a connection.

    Raises:
        TooLarge, Corrupt: it is no such message.
        OSError, asyncio.IncompleteReadError: the connection ended.
    """
    try:
        return pb.JoinRequest.FromString(await _receive(reader))
    except DecodeError as err:
        raise Corrupt(f"a message at the join port cannot be read: {err}") from err


async def receive_response(reader: asyncio.StreamReader) -> pb.JoinResponse:
    """Return the answer to a request; raises as `receive_request`."""
    try:
        return pb.JoinResponse.FromString(await _receive(reader))
    except DecodeError as err:
        raise Corrupt(f"the answer of the join port cannot be read: {err}") from err


async def _receive(reader: asyncio.StreamReader) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > MAX_BYTES:
        raise TooLarge(
            f"a message of {length} bytes at the join port; at most {MAX_BYTES} are read"
        )
    return await reader.readexactly(length)
