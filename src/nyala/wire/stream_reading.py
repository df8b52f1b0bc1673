"""Frames of a stream from the bytes of its connection: messages by way of a buffer, bodies in place.

Pure, but for the memory that it hands out. A body is received where it stays (slabs.py).
"""

from collections.abc import Callable

from nyala.common.errors import NyalaError
from nyala.wire.slabs import Slabs
from nyala.wire.stream_frames import HEADER, StreamFrame, StreamFrameKind, read_header

BUFFER_BYTES = 32 << 10
"""Receive buffer of headers and messages; larger while a message needs more."""


class FrameReader:
    """Takes bytes where it asked for them, and hands frames on.

    Args:
        max_bytes: largest frame accepted.
        slabs: where bodies go.
        heard: gets each frame; may call `stop`.
    """

    def __init__(self, max_bytes: int, slabs: Slabs, heard: Callable[[StreamFrame], None]) -> None:
        self._max_bytes = max_bytes
        self._slabs = slabs
        self._heard = heard
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._filled = 0
        self._half: tuple[StreamFrameKind, bytes] | None = (
            None  # a frame whose body is not complete
        )
        self._body = memoryview(b"")
        self._received = 0  # bytes of it
        self._stopped = False

    def stop(self) -> None:
        """Throw away what is half received, and everything that still comes."""
        self._stopped = True
        self._half, self._body, self._filled = None, memoryview(b""), 0

    def room(self) -> memoryview:
        """Say where the next bytes go."""
        if self._half is not None:
            return self._body[self._received :]
        return self._buffer[self._filled :]

    def take(self, count: int) -> None:
        """Hand on every whole frame that has arrived with so many bytes more.

        Raises:
            Corrupt: what came is no frame; nothing more is taken.
        """
        if self._stopped:
            return
        if self._half is not None:
            self._received += count
            if self._received == len(self._body):
                self._whole()
            return
        self._filled += count
        at = 0
        try:
            while not self._stopped and (end := self._frame(at)):
                at = end
        except NyalaError:
            self.stop()
            raise
        if not self._stopped:
            self._keep(at)

    def _frame(self, at: int) -> int:
        """Take the frame at a position, or the beginning of its body; return its end, 0: not there yet."""
        if self._half is not None or self._filled - at < HEADER.size:
            return 0
        kind, size, body = read_header(self._buffer, at, self._max_bytes)
        begin, end = at + HEADER.size, at + HEADER.size + size
        if end > self._filled:
            if HEADER.size + size > len(self._buffer):
                self._grow(at, HEADER.size + size)
            return 0
        message = bytes(self._buffer[begin:end])
        if body is None:
            self._heard(StreamFrame(kind, message))
            return end
        here = min(body, self._filled - end)
        self._half, self._body, self._received = (kind, message), self._slabs.take(body), here
        self._body[:here] = self._buffer[end : end + here]
        if here == body:
            self._whole()
        return end + here

    def _whole(self) -> None:
        assert self._half is not None, "a body without a frame"
        kind, message = self._half
        body, self._body, self._half = self._body, memoryview(b""), None
        self._heard(StreamFrame(kind, message, body))

    def _grow(self, at: int, size: int) -> None:
        left = self._buffer[at : self._filled]
        self._buffer = memoryview(bytearray(at + size))
        self._buffer[at : at + len(left)] = left

    def _keep(self, at: int) -> None:
        """Bring what is left from `at` on to the front."""
        left = self._filled - at
        if not left and len(self._buffer) > BUFFER_BYTES:
            self._buffer = memoryview(bytearray(BUFFER_BYTES))
        elif at and left:
            self._buffer[:left] = bytes(self._buffer[at : self._filled])
        self._filled = left
