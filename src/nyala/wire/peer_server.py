"""The accepting end of the peer port: reads frames, checks them, hands batches to the replica host.

Whatever is wrong with a connection's bytes ends that connection and nothing else.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from nyala.common import addresses
from nyala.common.errors import BadChecksum, BadVersion, Corrupt, InvalidArgument, NyalaError
from nyala.common.ids import ServerUuid
from nyala.common.metrics import Metrics
from nyala.raft.messages import PeerBatch
from nyala.wire.frames import HEADER, FrameKind, decode_frame, payload_bytes

log = logging.getLogger(__name__)

BUFFER_BYTES = 256 << 10
"""Initial receive buffer of a connection; doubled while a frame fills it."""
LARGE_BYTES = 4 << 20
"""A buffer above this size goes with the frames that needed it."""
_WHY: dict[type[NyalaError], str] = {BadChecksum: "checksum", BadVersion: "version"}


class PeerServer:
    """Accepts connections of peers.

    Args:
        uuid: of this server; frames for another are refused (its address may be ours now).
        cluster_id: of this server; empty while unknown, which fits any.
        handler: gets each batch, on the loop.
        frame_bytes: largest frame accepted.
        connections: accepted at a time.
        hello_ms: a connection that has not said by then who it is, is closed.
        metrics: where refusals are counted, by their reason.
    """

    def __init__(
        self,
        uuid: ServerUuid,
        cluster_id: Callable[[], str],
        handler: Callable[[PeerBatch], None],
        frame_bytes: int,
        connections: int,
        hello_ms: int,
        metrics: Metrics,
    ) -> None:
        self.uuid = uuid
        self.cluster_id = cluster_id
        self.handler = handler
        self.frame_bytes = frame_bytes
        self.hello_ms = hello_ms
        self._refused = metrics.counter(
            "peer_refused_connections", "Closed for what they sent or did not, by reason.", ["why"]
        )
        self._limit = connections
        self._open: dict[PeerConnection, None] = {}
        self._server: asyncio.Server | None = None

    async def listen(self, address: str) -> str:
        """Bind and accept; return the address with its port.

        Raises:
            Forbidden: not a loopback address.
            InvalidArgument: not an address, or its port is in use.
        """
        host, port = addresses.require_loopback(address)
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: PeerConnection(self), host, port
            )
        except OSError as err:
            raise InvalidArgument(
                f"cannot listen for peers on {address}: {err.strerror or err}; stop the process "
                "that has the port, or choose another"
            ) from err
        return addresses.join(host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Close the listener and every connection."""
        if self._server is not None:
            self._server.close()
            for connection in list(self._open):
                connection.abort()
                await connection.lost.wait()
            await self._server.wait_closed()
            self._server = None

    def opened(self, connection: "PeerConnection") -> bool:
        """Count a connection in; False when there are too many."""
        if len(self._open) >= self._limit:
            self.count_refused("too many")
            log.warning("peer port: more than %d connections; one was refused", self._limit)
            return False
        self._open[connection] = None
        return True

    def count_refused(self, why: str) -> None:
        """Count a connection that is closed because of what it sent, did not send, or for being too many."""
        self._refused.labels(why).inc()

    def closed(self, connection: "PeerConnection") -> None:
        """Count a connection out."""
        self._open.pop(connection, None)


class PeerConnection(asyncio.BufferedProtocol):
    """One accepted connection: a HELLO, then batches. Frames are decoded in place."""

    def __init__(self, server: PeerServer) -> None:
        self._server = server
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._filled = 0  # bytes in the buffer, of a frame that is not complete
        self._peer: ServerUuid | None = None
        self._transport: asyncio.Transport | None = None
        self._frames = 0
        self._watch: asyncio.TimerHandle | None = None
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept, unless there are too many."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        if not self._server.opened(self):
            self._transport.abort()
            return
        self._watch_on()

    def _watch_on(self) -> None:
        loop, wait_s = asyncio.get_running_loop(), self._server.hello_ms / 1000
        half = self._frames if self._filled else -1  # a frame has begun, and not ended
        self._watch = loop.call_later(wait_s, self._look, half)

    def _look(self, half: int) -> None:
        """Close a connection without a HELLO, or with an incomplete frame, after `hello_ms`."""
        waited = f"within {self._server.hello_ms} ms"
        if self._peer is None:
            self._refuse("silent", f"no HELLO was received {waited}")
        elif half == self._frames and self._filled:
            self._refuse("stalled", f"no frame was completed {waited}")
        else:
            self._watch_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop an incomplete frame."""
        if self._watch is not None:
            self._watch.cancel()
        if self._filled:
            self._server.count_refused("truncated")
        self._server.closed(self)
        self._filled = 0
        self._buffer = memoryview(b"")
        self._transport = None
        self.lost.set()

    def abort(self) -> None:
        """Close at once."""
        self._filled = 0
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the complete frames received."""
        self._filled += nbytes
        at = 0
        try:
            while self._transport is not None and (end := self._end(at)) is not None:
                self._frame(self._buffer[at:end])
                at = end
        except NyalaError as err:
            self._refuse(err.details.get("why", _WHY.get(type(err), "malformed")), str(err))
        except Exception:  # the top of a callback: a failing handler is not the peer's fault
            log.exception("handling a batch of peer %s failed", self._peer)
            self.abort()
        if self._filled:  # otherwise it was aborted
            self._keep(at)

    def _end(self, at: int) -> int | None:
        """Return the end of the frame that begins at `at`; None while it is incomplete."""
        if self._filled - at < HEADER.size:
            return None
        length = payload_bytes(self._buffer[at:], self._server.frame_bytes)
        end = at + HEADER.size + length
        return end if end <= self._filled else None

    def _keep(self, at: int) -> None:
        """Move the bytes from `at` on to the front of a buffer with room for more."""
        left = self._filled - at
        full, emptied = left == len(self._buffer), not left and len(self._buffer) > LARGE_BYTES
        if full or emptied:
            kept, size = self._buffer, 2 * left if full else BUFFER_BYTES
            self._buffer = memoryview(bytearray(size))
            self._buffer[:left] = kept[at : self._filled]
        elif at and left:
            self._buffer[:left] = bytes(self._buffer[at : self._filled])
        self._filled = left

    def _frame(self, raw: memoryview) -> None:
        frame = decode_frame(raw)
        self._frames += 1
        ours = self._server.cluster_id()
        if frame.cluster_id and ours and frame.cluster_id != ours:
            raise Corrupt(
                f"a frame of cluster {frame.cluster_id}; this server is of {ours}",
                {"why": "cluster"},
            )
        if frame.batch.to != self._server.uuid:
            raise Corrupt(
                f"a frame for server {frame.batch.to}; this is {self._server.uuid}",
                {"why": "destination"},
            )
        if self._peer is None:
            if frame.kind is not FrameKind.HELLO:
                raise Corrupt("the first frame of a connection is not a hello", {"why": "no hello"})
            self._peer = frame.batch.sender
        elif frame.batch.sender != self._peer:
            raise Corrupt(
                f"a frame of {frame.batch.sender} on the connection of {self._peer}",
                {"why": "sender"},
            )
        elif frame.kind is FrameKind.BATCH:
            self._server.handler(frame.batch)

    def _refuse(self, kind: str, why: str) -> None:
        self._server.count_refused(kind)
        log.warning("peer port: connection of %s closed: %s", self._peer or "an unknown peer", why)
        self.abort()
