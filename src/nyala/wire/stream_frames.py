"""The bytes of the stream port: frames of a 24-byte header, a message and, with a batch, its body.

Rules: pure. docs/internals/formats-wire.md shows the bytes; only this module packs or unpacks them. The
body stands apart so that it can be sent from where it lies and received where it stays.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from nyala.common.errors import BadVersion, Corrupt

MAGIC = b"NYSF"
VERSION = 1
HEADER = struct.Struct("<4sBBBxIIQ")
"""Magic, version, kind, 1 if a body follows; bytes of the message, 0, bytes of the body."""
TICKET_BYTES = 16


class StreamFrameKind(IntEnum):
    """OPEN begins a stream: a server's ticket, then the method's path. The others follow it, both ways."""

    OPEN = 1
    MESSAGE = 2
    END = 3
    ERROR = 4


_KINDS = {int(k): k for k in StreamFrameKind}


@dataclass(frozen=True, slots=True)
class StreamFrame:
    """One frame.

    Attributes:
        kind: what it is for.
        message: by the method's codec, without the body; of an ERROR an `Error`.
        body: of a `FlightData` that has one.
    """

    kind: StreamFrameKind
    message: bytes
    body: memoryview | None = None


def frame_head(kind: StreamFrameKind, message: bytes, body_bytes: int | None) -> bytes:
    """Return header and message of a frame; the body is sent behind it.

    Args:
        kind: of the frame.
        message: the message.
        body_bytes: length of the body; None: no body.
    """
    has, size = (0, 0) if body_bytes is None else (1, body_bytes)
    return HEADER.pack(MAGIC, VERSION, kind, has, len(message), 0, size) + message


def read_header(
    raw: bytes | memoryview | bytearray, at: int, max_bytes: int
) -> tuple[StreamFrameKind, int, int | None]:
    """Return the kind of a frame, the bytes of its message and those of its body; None: it has none.

    Args:
        raw: received bytes.
        at: position in `raw`.
        max_bytes: largest frame accepted.

    Raises:
        Corrupt: not a frame's header, or sizes over the limit.
        BadVersion: of a version that this build does not know.
    """
    magic, version, kind, has, size, zero, body = HEADER.unpack_from(raw, at)
    if magic != MAGIC:
        raise Corrupt(
            f"the stream port received bytes that are no frame: they begin with {magic!r}"
        )
    if version != VERSION:
        raise BadVersion(f"a stream's frame of version {version}; this build knows {VERSION}")
    if kind not in _KINDS or has > 1 or zero or (body and not has):
        raise Corrupt(f"a stream's frame of kind {kind} with flags {has}, {zero} and {body} bytes")
    if size + body > max_bytes:
        raise Corrupt(
            f"a stream's frame claims {size + body} bytes; the limit is {max_bytes}",
            {"why": "oversized", "limit": str(max_bytes), "size": str(size + body)},
        )
    return _KINDS[kind], size, body if has else None


def open_message(ticket: bytes, path: str) -> bytes:
    """Return the message of an OPEN frame."""
    assert len(ticket) == TICKET_BYTES, f"a ticket of {len(ticket)} bytes"
    return ticket + path.encode()


def read_open(message: bytes) -> tuple[bytes, str]:
    """Return ticket and path of an OPEN frame.

    Raises:
        Corrupt: it is too short, or the path is no text.
    """
    try:
        path = message[TICKET_BYTES:].decode()
    except UnicodeDecodeError as err:
        raise Corrupt(f"a stream is opened by bytes that name no method: {err}") from err
    if len(message) <= TICKET_BYTES:
        raise Corrupt(f"a stream is opened by {len(message)} bytes, which name no method")
    return message[:TICKET_BYTES], path
