"""One end of a stream on the stream port: frames in and out of one connection, each way at its reader's pace.

On the loop only.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from typing import cast

from nyala.common.errors import NyalaError, Unavailable
from nyala.wire.flight_data import Bytes
from nyala.wire.slabs import Slabs
from nyala.wire.stream_frames import Frame, Kind, frame_head
from nyala.wire.stream_reading import FrameReader

QUEUED_BYTES = 8 << 20
"""While more than this waits for its reader, nothing is read from the connection."""
UNSENT_BYTES = 4 << 20
"""While more than this waits to be sent, the writer waits."""
LINGER_S = 5.0
SILENCE_MS = 10_000
"""A connection whose bytes are not acknowledged for so long is given up."""


class _Sender(asyncio.BufferedProtocol):
    """The sending half.

    Attributes:
        failure: see `StreamEnd`.
    """

    def __init__(self) -> None:
        self.failure: NyalaError | None = None
        self._transport: asyncio.Transport | None = None
        self._writers: list[asyncio.Future[None]] = []
        self._full = False

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

    def pause_writing(self) -> None:
        """Too much is unsent."""
        self._full = True

    def resume_writing(self) -> None:
        """Little is unsent."""
        self._full = False
        self._wake_writers()

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for waiting in writers:
            _set(waiting)


class StreamEnd(_Sender):
    """Either end of one stream.

    Args:
        max_bytes: largest frame accepted.
        slabs: where bodies go.

    Attributes:
        failure: why nothing more comes, once that is so and no frame said it.
        max_bytes: as given.
    """

    def __init__(self, max_bytes: int, slabs: Slabs) -> None:
        super().__init__()
        self.max_bytes = max_bytes
        self._incoming = FrameReader(max_bytes, slabs, self.heard)
        self._frames: deque[Frame] = deque()
        self._queued_bytes = 0
        self._held_back = False
        self._reader: asyncio.Future[None] | None = None

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
        self._incoming.stop()
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
        self._incoming.stop()
        self._wake()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Say where the next bytes go."""
        return self._incoming.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Take every whole frame that has arrived."""
        try:
            self._incoming.take(nbytes)
        except NyalaError as err:
            self.refused(err)

    def refused(self, err: NyalaError) -> None:
        """What came is no frame."""
        self.fail(err)

    # ---- who waits -----------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._wake_reader()
        self._wake_writers()

    def _wake_reader(self) -> None:
        _set(self._reader)


def _set(waiting: "asyncio.Future[None] | None") -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _size(frame: Frame) -> int:
    return len(frame.message) + (0 if frame.body is None else len(frame.body))


def _lost() -> Unavailable:
    return Unavailable("the connection broke")
