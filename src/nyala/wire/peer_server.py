"""The accepting end of the peer port: reads frames, checks them, passes batches to the replica host.

An error in the bytes of a connection closes only that connection.
"""

import asyncio
import logging
import os
from collections.abc import Callable

from nyala.common import addresses
from nyala.common.errors import BadChecksum, BadVersion, Corrupt, InvalidArgument, NyalaError
from nyala.common.ids import ServerUuid
from nyala.common.metrics import Metrics
from nyala.raft.messages import PeerBatch
from nyala.security import policy
from nyala.security.credentials import Credentials
from nyala.wire.connection import Listener, configured
from nyala.wire.frames import HEADER, FrameKind, decode_frame, payload_bytes
from nyala.wire.framing import ReceiveBuffer
from nyala.wire.limits import PeerLimits
from nyala.wire.tls.access import identity_of_connection
from nyala.wire.tls.auditing import Audit
from nyala.wire.tls.bounded_lines import BoundedLines
from nyala.wire.tls.refusals import Refusals

log = logging.getLogger(__name__)
log.addFilter(BoundedLines())

BUFFER_BYTES = 256 << 10
"""Initial receive buffer of a connection; doubled while a frame fills it."""
LARGE_BYTES = 4 << 20
"""Size in bytes above which a receive buffer is released once its frames are processed."""
NO_MEMBER = "no member"
AUDITED = frozenset({"no server", "cluster", "destination", "certificate", "sender", NO_MEMBER})
"""Reasons for which a refusal is in the audit log: who sent the frame, and to whom."""
PORT = "peer port"
_WHY: dict[type[NyalaError], str] = {BadChecksum: "checksum", BadVersion: "version"}


class PeerServer:
    """Accepts connections of peers.

    Args:
        uuid: uuid of this server; frames for another are refused (that server may have had this address).
        cluster_id: cluster id of this server; empty: unknown, which matches any.
        handler: gets each batch, on the loop.
        limits: limits of frames and connections.
        metrics: where refusals are counted, by their reason.
        credentials: of the server, for TLS; None: no encryption.
        audit: audit log of the server, which gets a line for each peer and reason in a minute, and the number
            of further refusals; None: it has none.
    """

    def __init__(
        self,
        uuid: ServerUuid,
        cluster_id: Callable[[], str],
        handler: Callable[[PeerBatch], None],
        limits: PeerLimits,
        metrics: Metrics,
        credentials: Credentials | None = None,
        audit: Audit | None = None,
    ) -> None:
        self._refusals = Refusals(audit, lines_of_caller=1)
        self.uuid = uuid
        self.cluster_id = cluster_id
        self.handler = handler
        self.limits = limits
        self._refused = metrics.counter(
            "peer_refused_connections",
            "Connections closed for invalid or missing frames, or for being too many, by reason.",
            ["why"],
        )
        self.connections: Listener[PeerConnection] = Listener(PORT, limits.connections, credentials)

    async def listen(self, address: str) -> str:
        """Bind and accept; return the address with its port.

        Raises:
            Forbidden: not a loopback address, and no credentials.
            InvalidArgument: not an address, or its port is in use.
        """
        secured = self.connections.credentials is not None
        host, port = addresses.to_bind(address, secured=secured)
        try:
            bound = await self.connections.listen(lambda: PeerConnection(self), host, port)
        except OSError as err:
            raise InvalidArgument(
                f"cannot listen for peers on {address}: {os.strerror(err.errno or 0)}; stop the process that "
                "uses the port, or choose another port"
            ) from err
        return addresses.join(host, bound)

    async def close(self) -> None:
        """Close the listener and every connection."""
        await self.connections.close(PeerConnection.abort)

    def count_refused(self, why: str) -> None:
        """Count a connection that is closed for invalid or missing frames, or for being too many."""
        self._refused.labels(why).inc()

    def note_refused(self, kind: str, who: str, peer: str, err: NyalaError) -> None:
        """Note a refusal in the audit log, if it is for who sent a frame or to whom.

        Args:
            kind: reason, as it is counted.
            who: holder of the certificate of the other end; empty: none that is valid.
            peer: host of the other end.
            err: the refusal.
        """
        if kind in AUDITED:
            self._refusals.begin(f"{who or peer}: {kind}", PORT, peer, err)


class PeerConnection(asyncio.BufferedProtocol):
    """One accepted connection: a HELLO, then batches. Frames are decoded in place."""

    def __init__(self, server: PeerServer) -> None:
        self._server = server
        self._incoming = ReceiveBuffer(BUFFER_BYTES, LARGE_BYTES)
        self._peer: ServerUuid | None = None
        self._certified: str | None = None  # uuid in the certificate of the other end
        self._who = ""  # holder of that certificate
        self._transport: asyncio.Transport | None = None
        self._frames = 0
        self._check_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept, unless there are too many."""
        self._transport = configured(transport, self._server.limits.silence_ms)
        if not self._server.connections.admit(self, transport):
            self._server.count_refused("too many")
            self._transport.abort()
            return
        credentials = self._server.connections.credentials
        if credentials is not None and not self._is_server(transport, credentials):
            return
        self._schedule_check()

    def _is_server(self, transport: asyncio.BaseTransport, credentials: Credentials) -> bool:
        """Return whether the other end has a server's certificate; close the connection if not."""
        try:
            principal = identity_of_connection(transport, credentials).principal
            self._who = str(principal)
            policy.require_server(principal)
        except NyalaError as err:
            self._refuse("no server", err)
            return False
        self._certified = principal.server_uuid
        return True

    def _schedule_check(self) -> None:
        loop, wait_s = asyncio.get_running_loop(), self._server.limits.hello_ms / 1000
        half = self._frames if self._incoming.filled else -1  # a frame has begun, and not ended
        self._check_timer = loop.call_later(wait_s, self._check_progress, half)

    def _check_progress(self, half: int) -> None:
        """Close a connection without a HELLO, or with an incomplete frame, after `hello_ms`."""
        waited = f"within {self._server.limits.hello_ms} ms"
        if self._peer is None:
            self._refuse("silent", Corrupt(f"no HELLO was received {waited}"))
        elif half == self._frames and self._incoming.filled:
            self._refuse("stalled", Corrupt(f"no frame was completed {waited}"))
        else:
            self._schedule_check()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop an incomplete frame."""
        if self._check_timer is not None:
            self._check_timer.cancel()
        if self._incoming.filled:
            self._server.count_refused("truncated")
        self._server.connections.remove(self)
        self._incoming.stop()
        self._transport = None

    def abort(self) -> None:
        """Close at once."""
        self._incoming.stop()
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._incoming.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the complete frames received."""
        try:
            self._incoming.take(nbytes, self._use)
        except NyalaError as err:
            self._refuse(err.details.get("why", _WHY.get(type(err), "malformed")), err)
        except Exception:  # the top of a callback: a failing handler is not the peer's fault
            log.exception("handling a batch of peer %s failed", self._peer)
            self.abort()

    def _use(self, raw: memoryview) -> int:
        """Handle the frame at the beginning of `raw`; see `ReceiveBuffer.take`."""
        if len(raw) < HEADER.size:
            return 0
        end = HEADER.size + payload_bytes(raw, self._server.limits.frame_bytes)
        if end > len(raw):
            return 0
        self._frame(raw[:end])
        return end

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
        if self._certified not in (None, frame.batch.sender):
            raise Corrupt(
                f"a frame of {frame.batch.sender} on the connection of a server whose certificate names "
                f"{self._certified}",
                {"why": "certificate"},
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

    def _refuse(self, kind: str, why: NyalaError) -> None:
        self._server.count_refused(kind)
        name = self._transport.get_extra_info("peername") if self._transport else None
        self._server.note_refused(kind, self._who, str(name[0]) if name else "", why)
        log.warning("peer port: connection of %s closed: %s", self._peer or "an unknown peer", why)
        self.abort()
