"""One end of a stream on the stream port: frames over one connection, with back-pressure both ways."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from nyala.common.errors import NyalaError, Unavailable
from nyala.wire.connection import configured
from nyala.wire.flight_data import Bytes
from nyala.wire.framing import Slabs
from nyala.wire.limits import SILENCE_MS
from nyala.wire.stream_frames import FrameReader, StreamFrame, StreamFrameKind, frame_head

QUEUED_BYTES = 8 << 20
"""Limit of received frames of a server's stream not consumed yet; a client has one for all its streams."""
UNSENT_BYTES = 4 << 20
"""Limit of bytes not sent yet; above it `send` waits."""
LINGER_S = 5.0
"""Time, in seconds, that the other end has to close the connection after `finish`."""


class StreamEnd(asyncio.BufferedProtocol):
    """Either end of one stream. Used on the loop only.

    Args:
        max_bytes: largest frame accepted.
        slabs: allocates the buffers of bodies.
        queued_bytes: returns the limit of received bytes not consumed yet, above which nothing is read; one
            frame always has room.

    Attributes:
        failure: why no further frame comes, unless a frame gave the reason; None while the stream is open.
        max_bytes: as given.
        made_s: time of the loop at which the connection was made, in seconds.
    """

    def __init__(
        self, max_bytes: int, slabs: Slabs, queued_bytes: Callable[[], int] = lambda: QUEUED_BYTES
    ) -> None:
        self._most_queued = queued_bytes
        self.failure: NyalaError | None = None
        self.made_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._writers: list[asyncio.Future[None]] = []
        self._full = False
        self.max_bytes = max_bytes
        self._incoming = FrameReader(max_bytes, slabs, self.on_frame)
        self._frames: deque[StreamFrame] = deque()
        self._queued_bytes = 0
        self._reading_paused = False
        self._reader: asyncio.Future[None] | None = None

    # ---- sending and receiving ---------------------------------------------------------------------

    def write(
        self, kind: StreamFrameKind, message: bytes, body: Sequence[Bytes] | None = None
    ) -> None:
        """Send a frame, buffered while the connection is slow; dropped when it is lost.

        Args:
            kind: kind of the frame.
            message: by the method's codec.
            body: pieces of the body; None: no body.
        """
        if self._transport is None:
            return
        if body is None:
            self._transport.write(frame_head(kind, message, None))
        else:
            head = frame_head(kind, message, sum(map(len, body)))
            self._transport.writelines([head, *(b for b in body if len(b))])

    async def send(
        self, kind: StreamFrameKind, message: bytes, body: Sequence[Bytes] | None = None
    ) -> None:
        """As `write`, then wait while more than `UNSENT_BYTES` are buffered.

        Args:
            kind: kind of the frame.
            message: by the method's codec.
            body: pieces of the body; None: no body.

        Raises:
            NyalaError: the connection is lost.
        """
        self.write(kind, message, body)
        if self._full and self._transport is not None:
            waiting = asyncio.get_running_loop().create_future()
            self._writers.append(waiting)
            await waiting
        if self._transport is None or self._transport.is_closing():
            # The loop learns of a loss only when it runs: a caller with more to send might never let it.
            raise self.failure or _lost()

    async def receive(self) -> StreamFrame:
        """Return the next frame.

        Raises:
            NyalaError: no further frame comes; see `failure`.
        """
        while not self._frames:
            if self.failure is not None:
                raise self.failure
            assert self._reader is None, "concurrent receive() on one stream"
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        frame = self._frames.popleft()
        self._queued_bytes -= _size(frame)
        if self._queued_bytes < self._most_queued() // 2 or not self._frames:
            self.resume_reading()
        return frame

    def fail(self, why: NyalaError) -> None:
        """Close the connection at once; pending `receive` and `send` raise the error."""
        self.failure = self.failure or why
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    @property
    def full(self) -> bool:
        """True while more than `UNSENT_BYTES` are buffered: the other end does not take them."""
        return self._full

    def idle_within(self, seconds: float) -> bool:
        """Return whether the connection is open, has nothing queued, and is not older than a time."""
        open_ = self._transport is not None and not self._transport.is_closing()
        young = asyncio.get_running_loop().time() - self.made_s < seconds
        return open_ and young and self.failure is None and not self._frames

    def finish(self) -> None:
        """Half-close after everything is sent; drop what was and is received until the other end closes.

        Closing at once with unread bytes would reset the connection, and the other end could lose what it has
        not read yet.
        """
        self.discard()
        if self._transport is not None:
            self.resume_reading()
            if self._transport.can_write_eof():  # TLS connections have no half-close
                self._transport.write_eof()
            asyncio.get_running_loop().call_later(LINGER_S, self.fail, _lost())

    def discard(self) -> None:
        """Drop what was received and not consumed, and all that comes; no `receive` follows.

        The parts of a connection refer to each other, so they remain until the next garbage collection, which
        few objects of many bytes do not bring about.
        """
        self._incoming.stop()
        self._frames.clear()
        self._queued_bytes = 0

    def on_frame(self, frame: StreamFrame) -> None:
        """Queue a frame for `receive`."""
        self._frames.append(frame)
        self._queued_bytes += _size(frame)
        if self._queued_bytes > self._most_queued():
            self.pause_reading()
        self._wake_reader()

    def pause_reading(self) -> None:
        """Stop reading from the connection."""
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading from the connection."""
        if self._reading_paused and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()

    # ---- callbacks of the transport ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set buffer limits, keep-alive and the time-out of unacknowledged bytes."""
        self._transport = configured(transport, SILENCE_MS)
        self._transport.set_write_buffer_limits(UNSENT_BYTES)
        self.made_s = asyncio.get_running_loop().time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail pending `receive` and `send`."""
        self._transport = None
        self.failure = self.failure or _lost(exc)
        self._incoming.stop()
        self._wake()

    def pause_writing(self) -> None:
        """Make senders wait: more than `UNSENT_BYTES` are buffered."""
        self._full = True

    def resume_writing(self) -> None:
        """Wake waiting senders: the buffer has drained."""
        self._full = False
        self._wake_writers()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._incoming.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Decode the complete frames received."""
        try:
            self._incoming.take(nbytes)
        except NyalaError as err:
            self.on_invalid_frame(err)

    def on_invalid_frame(self, err: NyalaError) -> None:
        """Fail the stream: the bytes received are no valid frame."""
        self.fail(err)

    # ---- wake-ups ------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._wake_reader()
        self._wake_writers()

    def _wake_reader(self) -> None:
        _set(self._reader)

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for waiting in writers:
            _set(waiting)


def _set(waiting: "asyncio.Future[None] | None") -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _size(frame: StreamFrame) -> int:
    return len(frame.message) + (0 if frame.body is None else len(frame.body))


def _lost(cause: Exception | None = None) -> Unavailable:
    why = f": {cause}" if cause is not None else " by the other end before the stream ended"
    return Unavailable(f"the stream's connection was closed{why}")
