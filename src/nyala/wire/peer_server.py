"""The accepting end of the peer port: reads frames, checks them, hands batches to the replica host.

Whatever is wrong with a connection's bytes ends that connection and nothing else.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from nyala.common import addresses
from nyala.common.errors import Corrupt, InvalidArgument, NyalaError
from nyala.common.ids import ServerUuid
from nyala.raft.messages import PeerBatch
from nyala.wire.frames import HEADER, FrameKind, decode_frame, payload_bytes

log = logging.getLogger(__name__)


class PeerServer:
    """Accepts connections of peers.

    Args:
        uuid: of this server; frames for another are refused (its address may be ours now).
        cluster_id: of this server; empty while unknown, which fits any.
        handler: gets each batch, on the loop.
        frame_bytes: largest frame accepted.
        connections: accepted at a time.
    """

    def __init__(
        self,
        uuid: ServerUuid,
        cluster_id: Callable[[], str],
        handler: Callable[[PeerBatch], None],
        frame_bytes: int,
        connections: int,
    ) -> None:
        self.uuid = uuid
        self.cluster_id = cluster_id
        self.handler = handler
        self.frame_bytes = frame_bytes
        self.refused = 0
        """Connections closed because of what they sent, or for being too many."""
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
            self.refused += 1
            log.warning("peer port: more than %d connections; one was refused", self._limit)
            return False
        self._open[connection] = None
        return True

    def closed(self, connection: "PeerConnection") -> None:
        """Count a connection out."""
        self._open.pop(connection, None)


class PeerConnection(asyncio.Protocol):
    """One accepted connection: a HELLO, then batches."""

    def __init__(self, server: PeerServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._peer: ServerUuid | None = None
        self._transport: asyncio.Transport | None = None
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept, unless there are too many."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        if not self._server.opened(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what was half received."""
        self._server.closed(self)
        self._buffer.clear()
        self._transport = None
        self.lost.set()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle every whole frame that has arrived."""
        self._buffer += data
        try:
            while self._transport is not None and (raw := self._next()) is not None:
                self._frame(raw)
        except NyalaError as err:
            self._refuse(str(err))
        except Exception:  # the top of a callback: a failing handler must not pass for a bad peer
            log.exception("handling a batch of peer %s failed", self._peer)
            self.abort()

    def _next(self) -> bytes | None:
        """Take one frame out of the buffer; None while it is not complete."""
        if len(self._buffer) < HEADER.size:
            return None
        end = HEADER.size + payload_bytes(self._buffer, self._server.frame_bytes)
        if len(self._buffer) < end:
            return None
        raw = bytes(memoryview(self._buffer)[:end])
        del self._buffer[:end]
        return raw

    def _frame(self, raw: bytes) -> None:
        frame = decode_frame(raw)
        ours = self._server.cluster_id()
        if frame.cluster_id and ours and frame.cluster_id != ours:
            raise Corrupt(f"a frame of cluster {frame.cluster_id}; this server is of {ours}")
        if frame.batch.to != self._server.uuid:
            raise Corrupt(f"a frame for server {frame.batch.to}; this is {self._server.uuid}")
        if self._peer is None:
            if frame.kind is not FrameKind.HELLO:
                raise Corrupt("the first frame of a connection is not a hello")
            self._peer = frame.batch.sender
        elif frame.batch.sender != self._peer:
            raise Corrupt(f"a frame of {frame.batch.sender} on the connection of {self._peer}")
        elif frame.kind is FrameKind.BATCH:
            self._server.handler(frame.batch)

    def _refuse(self, why: str) -> None:
        self._server.refused += 1
        log.warning("peer port: connection of %s closed: %s", self._peer or "an unknown peer", why)
        self.abort()
