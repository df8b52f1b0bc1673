"""One end of a stream on the stream port: frames in and out of one connection, each way at its reader's pace.

Bodies are received where they stay (slabs.py). On the loop only.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from typing import cast

from nyala.common.errors import NyalaError, Unavailable
from nyala.wire.flight_data import Bytes
from nyala.wire.slabs import Slabs
from nyala.wire.stream_frames import HEADER, Frame, Kind, frame_head, read_header

BUFFER_BYTES = 32 << 10
"""What headers and messages are read into; larger for as long as a message needs more."""
QUEUED_BYTES = 8 << 20
"""While more than this waits for its reader, nothing is read from the connection."""
UNSENT_BYTES = 4 << 20
"""While more than this waits to be sent, the writer waits."""
LINGER_S = 5.0
SILENCE_MS = 10_000
"""A connection whose bytes are not acknowledged for so long is given up."""


class StreamEnd(asyncio.BufferedProtocol):
    """Either end of one stream.

    Args:
        max_bytes: largest frame accepted.
        slabs: where bodies go.

    Attributes:
        failure: why nothing more comes, once that is so and no frame said it.
        max_bytes: as given.
    """

    def __init__(self, max_bytes: int, slabs: Slabs) -> None:
        self.failure: NyalaError | None = None
        self.max_bytes = max_bytes
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._filled = 0
        self._half: tuple[Kind, bytes] | None = None  # a frame whose body is on its way
        self._body = memoryview(b"")
        self._received = 0  # bytes of it
        self._slabs = slabs
        self._frames: deque[Frame] = deque()
        self._queued_bytes = 0
        self._held_back = False
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []
        self._full = False
        self._deaf = False

    # ---- what its user does ------------------------------------------------------------------------

    async def receive(self) -> Frame:
        """Return the next frame.

        Raises:
            NyalaError: there will be none.
        """
        while not self._frames:
            if self.failure is not None:
                raise self.failure
            assert self._reader is None, "two read one stream"
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        frame = self._frames.popleft()
        self._queued_bytes -= _size(frame)
        if self._queued_bytes < QUEUED_BYTES // 2:
            self.go_on()
        return frame

    def write(self, kind: Kind, message: bytes, body: Sequence[Bytes] | None = None) -> None:
        """Send a frame at once, or as soon as the connection takes it; to nobody when that is lost."""
        if self._transport is None:
            return
        if body is None:
            self._transport.write(frame_head(kind, message, None))
        else:
            head = frame_head(kind, message, sum(map(len, body)))
            self._transport.writelines([head, *(b for b in body if len(b))])

    async def send(self, kind: Kind, message: bytes, body: Sequence[Bytes] | None = None) -> None:
        """As `write`, and wait while too much is unsent.

        Raises:
            NyalaError: the connection is lost.
        """
        self.write(kind, message, body)
        if self._full and self._transport is not None:
            waiting = asyncio.get_running_loop().create_future()
            self._writers.append(waiting)
            await waiting
        if self._transport is None:
            raise self.failure or _lost()

    def fail(self, why: NyalaError) -> None:
        """End the connection at once; whoever reads or writes is told why."""
        self.failure = self.failure or why
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def finish(self) -> None:
        """End this way once everything is sent; what still comes is thrown away until the other end closes.

        To close at once, with something unread, could take from the other end what it has not read.
        """
        self._deaf = True
        if self._transport is not None:
            self.go_on()
            self._transport.write_eof()
            asyncio.get_running_loop().call_later(LINGER_S, self.fail, _lost())

    def heard(self, frame: Frame) -> None:
        """Take a frame; it waits for `receive`."""
        self._frames.append(frame)
        self._queued_bytes += _size(frame)
        if self._queued_bytes > QUEUED_BYTES:
            self.hold_back()
        self._wake_reader()

    def hold_back(self) -> None:
        """Read nothing more from the connection for now."""
        if not self._held_back and self._transport is not None:
            self._held_back = True
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Read from it again."""
        if self._held_back and self._transport is not None:
            self._held_back = False
            self._transport.resume_reading()

    # ---- what the connection does --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._transport.set_write_buffer_limits(UNSENT_BYTES)
        sock = transport.get_extra_info("socket")
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if option is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, SILENCE_MS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits."""
        self._transport = None
        self.failure = self.failure or _lost()
        self._buffer = self._body = memoryview(b"")
        self._wake()

    def pause_writing(self) -> None:
        """Too much is unsent."""
        self._full = True

    def resume_writing(self) -> None:
        """Little is unsent."""
        self._full = False
        self._wake_writers()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Say where the next bytes go."""
        if self._deaf:
            return self._buffer
        if self._half is not None:
            return self._body[self._received :]
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take every whole frame that has arrived."""
        if self._deaf:
            return
        if self._half is not None:
            self._received += nbytes
            if self._received == len(self._body):
                self._whole()
            return
        self._filled += nbytes
        at = 0
        try:
            while self._transport is not None and (end := self._frame(at)):
                at = end
        except NyalaError as err:
            self._deaf = True
            self.refused(err)
        if self._transport is not None and not self._deaf:
            self._keep(at)

    def refused(self, err: NyalaError) -> None:
        """What came is no frame."""
        self.fail(err)

    def _frame(self, at: int) -> int:
        """Take the frame at a position, or the beginning of its body; return its end, 0: not there yet."""
        if self._half is not None or self._filled - at < HEADER.size:
            return 0
        kind, size, body = read_header(self._buffer, at, self.max_bytes)
        begin, end = at + HEADER.size, at + HEADER.size + size
        if end > self._filled:
            if HEADER.size + size > len(self._buffer):
                self._grow(at, HEADER.size + size)
            return 0
        message = bytes(self._buffer[begin:end])
        if body is None:
            self.heard(Frame(kind, message))
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
        self.heard(Frame(kind, message, body))

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

    # ---- who waits -----------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._wake_reader()
        self._wake_writers()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for waiting in writers:
            if not waiting.done():
                waiting.set_result(None)


def _size(frame: Frame) -> int:
    return len(frame.message) + (0 if frame.body is None else len(frame.body))


def _lost() -> Unavailable:
    return Unavailable("the connection broke")
