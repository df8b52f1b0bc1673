"""Frame format of the stream port: a 24-byte header, a message and, with a batch, its body.

No I/O. docs/internals/formats-wire.md describes the bytes; only this module encodes and decodes them. The
body is separate, so that it is sent from its buffers and received into its final place.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from nyala.common.errors import Corrupt, NyalaError
from nyala.wire.framing import FrameFormat, ReceiveBuffer, Slabs

FORMAT = FrameFormat(b"NYSF", 1, "stream port", "a stream's frame")
HEADER = struct.Struct("<4sBBBxIIQ")
"""Magic, version, kind, 1 if a body follows; length of the message, 0, length of the body."""
TICKET_BYTES = 16
BUFFER_BYTES = 32 << 10
"""Receive buffer of headers and messages; larger while a message needs more."""


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
        kind: kind of the frame.
        message: by the method's codec, without the body; of an ERROR an `Error`.
        body: body of a `FlightData` that has one.
    """

    kind: StreamFrameKind
    message: bytes
    body: memoryview | None = None


def frame_head(kind: StreamFrameKind, message: bytes, body_bytes: int | None) -> bytes:
    """Return header and message of a frame; the body is sent behind it.

    Args:
        kind: kind of the frame.
        message: the message.
        body_bytes: length of the body; None: no body.
    """
    has, size = (0, 0) if body_bytes is None else (1, body_bytes)
    return HEADER.pack(FORMAT.magic, FORMAT.version, kind, has, len(message), 0, size) + message


def read_header(
    raw: bytes | memoryview | bytearray, max_bytes: int
) -> tuple[StreamFrameKind, int, int | None]:
    """Return the kind of a frame, the length of its message and that of its body; None: no body.

    Raises:
        Corrupt: not a frame header, or sizes over the limit.
        BadVersion: an unsupported version.
    """
    magic, version, kind, has, size, zero, body = HEADER.unpack_from(raw)
    FORMAT.check(magic, version)
    if kind not in _KINDS or has > 1 or zero or (body and not has):
        raise Corrupt(f"a stream's frame of kind {kind} with flags {has}, {zero} and {body} bytes")
    FORMAT.check_size(size + body, max_bytes)
    return _KINDS[kind], size, body if has else None


def open_message(ticket: bytes, path: str) -> bytes:
    """Return the message of an OPEN frame."""
    assert len(ticket) == TICKET_BYTES, f"a ticket of {len(ticket)} bytes"
    return ticket + path.encode()


def read_open(message: bytes) -> tuple[bytes, str]:
    """Return ticket and path of an OPEN frame.

    Raises:
        Corrupt: it is too short, or the path is not UTF-8.
    """
    try:
        path = message[TICKET_BYTES:].decode()
    except UnicodeDecodeError as err:
        raise Corrupt(f"a stream is opened by bytes that name no method: {err}") from err
    if len(message) <= TICKET_BYTES:
        raise Corrupt(f"a stream is opened by {len(message)} bytes, which name no method")
    return message[:TICKET_BYTES], path


class FrameReader:
    """Reads the frames of one connection: messages from a buffer, bodies where they stay.

    Args:
        max_bytes: largest frame accepted.
        slabs: allocates the memory of bodies.
        on_frame: called with each frame; may call `stop`.
    """

    def __init__(
        self, max_bytes: int, slabs: Slabs, on_frame: Callable[[StreamFrame], None]
    ) -> None:
        self._max_bytes = max_bytes
        self._slabs = slabs
        self._on_frame = on_frame
        self._buffer = ReceiveBuffer(BUFFER_BYTES, BUFFER_BYTES)
        self._partial: tuple[StreamFrameKind, bytes] | None = None  # its body is not complete
        self._body = memoryview(b"")
        self._received = 0  # bytes of the body

    def stop(self) -> None:
        """Drop the incomplete frame and everything received from now on."""
        self._buffer.stop()
        self._partial, self._body = None, memoryview(b"")

    def room(self) -> memoryview:
        """Return the memory for the next bytes."""
        if self._partial is not None:
            return self._body[self._received :]
        return self._buffer.room()

    def take(self, count: int) -> None:
        """Hand on every frame that is complete with `count` bytes more.

        Raises:
            Corrupt: the bytes received are no frame; nothing more is taken.
        """
        try:
            if self._partial is None:
                self._buffer.take(count, self._use)
                return
            self._received += count
            if self._received == len(self._body):
                self._deliver()
        except NyalaError:
            self.stop()
            raise

    def _use(self, raw: memoryview) -> int:
        """Take the frame at the beginning of `raw`, perhaps without its body; see `ReceiveBuffer.take`."""
        if self._partial is not None or len(raw) < HEADER.size:
            return 0
        kind, size, body = read_header(raw, self._max_bytes)
        end = HEADER.size + size
        if end > len(raw):
            return 0
        message = bytes(raw[HEADER.size : end])
        if body is None:
            self._on_frame(StreamFrame(kind, message))
            return end
        here = min(body, len(raw) - end)
        self._partial, self._body, self._received = (kind, message), self._slabs.take(body), here
        self._body[:here] = raw[end : end + here]
        if here == body:
            self._deliver()
        return end + here

    def _deliver(self) -> None:
        assert self._partial is not None, "a body without a frame"
        kind, message = self._partial
        body, self._body, self._partial = self._body, memoryview(b""), None
        self._on_frame(StreamFrame(kind, message, body))
