"""The peer port: Raft messages between servers as frames, straight on the event loop.

Each server dials each other one twice and sends only on what it dialled: lane 0 carries heartbeats,
votes and replies, lane 1 appends with entries, so that no large append delays an election. Nothing
is sent again: a frame is dropped when the peer cannot be reached or does not read, and Raft retries.
Runs on the loop. Satisfies `replica.state_machine.Transport` by shape.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum

from msgspec.structs import replace

from nyala.common import addresses
from nyala.common.errors import Forbidden, NyalaError
from nyala.common.ids import ServerUuid, TabletId
from nyala.common.metrics import Metrics
from nyala.env.env import Env
from nyala.raft.messages import AnyMessage, AppendEntries, PeerBatch, Suffix
from nyala.security.credentials import Credentials
from nyala.wire.backoff import Backoff
from nyala.wire.connection import configured, dial
from nyala.wire.frames import FrameKind, encode_frame, frame_parts
from nyala.wire.limits import PeerLimits
from nyala.wire.peer_server import NO_MEMBER, PeerServer
from nyala.wire.tls.access import identity_of_connection
from nyala.wire.tls.auditing import Audit

log = logging.getLogger(__name__)

IDLE_US = 600_000_000
"""Time without a frame after which a connection is closed: its server is gone or has another address, in
microseconds. Checked when another connection is made."""
CHECKS_AFTER_LOSS = 3
"""Reconnects without a frame to send after a lost connection: a process that exits may still accept."""


class ConnectionClass(IntEnum):
    """The connection of a pair of servers that carries a message."""

    CONTROL = 0
    APPENDS = 1


class PeerTransport:
    """Carries batches between this server and its peers.

    Args:
        env: clock, randomness and tasks.
        cluster_id: called at each connection; empty: unknown, which matches any.
        limits: limits of frames, buffers and connections.
        metrics: metrics of this process.
        credentials: of this process, for TLS; None: no encryption.
        audit: audit log of this process, for refused peers; None: it has none.
    """

    def __init__(
        self,
        env: Env,
        cluster_id: Callable[[], str],
        limits: PeerLimits | None = None,
        metrics: Metrics | None = None,
        credentials: Credentials | None = None,
        audit: Audit | None = None,
    ) -> None:
        self._audit = audit
        self._env = env
        self._cluster_id = cluster_id
        self._limits = limits or PeerLimits()
        self._metrics = metrics or Metrics()
        self._credentials = credentials
        self._lanes: dict[tuple[str, ServerUuid, ConnectionClass], PeerLane] = {}
        self._handler: Callable[[PeerBatch], None] = lambda batch: None
        self._lost: Callable[[ServerUuid], None] = lambda server: None
        self._server: PeerServer | None = None
        self._dropped_before = 0  # by connections that are closed

    def receive(
        self, handler: Callable[[PeerBatch], None], lost: Callable[[ServerUuid], None]
    ) -> None:
        """Register the handlers of incoming batches, and of servers whose port refuses connections."""
        self._handler, self._lost = handler, lost

    def send(self, address: str, batch: PeerBatch) -> None:
        """Queue a batch for the peer port at `address`; drops what cannot be queued or sent."""
        for lane, part in split_batch(batch, self._limits.batch_bytes):
            key = (address, batch.to, lane)
            found = self._lanes.get(key)
            if found is None:
                self._close_idle()
                hello = PeerBatch(batch.sender, batch.to, 0, ())
                found = PeerLane(
                    self._env, address, hello, self._cluster_id, self._limits,
                    lambda server: self._lost(server), self._credentials,
                )  # fmt: skip
                self._lanes[key] = found
            found.send(frame_parts(part, self._cluster_id()))

    def _close_idle(self) -> None:
        for key, lane in list(self._lanes.items()):
            if lane.idle_us() >= IDLE_US:
                lane.abort()
                self._dropped_before += lane.dropped
                del self._lanes[key]

    async def listen(self, address: str, uuid: ServerUuid) -> str:
        """Accept peers of the server `uuid` on `address`; return it with the port that was bound.

        Raises:
            Forbidden: not a loopback address, and no credentials.
            InvalidArgument: not an address, or its port is in use.
        """
        self._server = PeerServer(
            uuid,
            self._cluster_id,
            lambda batch: self._handler(batch),
            self._limits,
            self._metrics,
            self._credentials,
            self._audit,
        )
        return await self._server.listen(address)

    def note_foreign(self, sender: ServerUuid, tablet: TabletId) -> None:
        """Note in the audit log that messages of a server are dropped, which is no member of a tablet."""
        if self._server is not None:
            err = Forbidden(f"messages of {sender} to tablet {tablet}, of which it is no member")
            self._server.note_refused(NO_MEMBER, str(sender), "", err)

    async def close(self) -> None:
        """Close the listener and all connections."""
        if self._server is not None:
            await self._server.close()
        for lane in self._lanes.values():
            await lane.close()
        self._lanes.clear()

    def dropped(self) -> int:
        """Frames dropped so far because a peer could not be reached or did not read."""
        return self._dropped_before + sum(lane.dropped for lane in self._lanes.values())


def split_batch(batch: PeerBatch, batch_bytes: int) -> Iterator[tuple[ConnectionClass, PeerBatch]]:
    """Yield the frames of a batch: by lane, in order within a lane, large ones in pieces.

    A batch without messages is a heartbeat of the sender: it becomes a frame too.
    """
    lanes: dict[ConnectionClass, list[tuple[TabletId, AnyMessage]]] = {
        ConnectionClass.CONTROL: [],
        ConnectionClass.APPENDS: [],
    }
    for group, message in batch.messages:
        appends = isinstance(message, AppendEntries | Suffix) and bool(message.entries)
        lanes[ConnectionClass.APPENDS if appends else ConnectionClass.CONTROL].append(
            (group, message)
        )
    for lane, messages in lanes.items():
        start, size = 0, 0
        for at, (_, message) in enumerate(messages):
            weight = _weight(message)
            if at > start and size + weight > batch_bytes:
                yield lane, replace(batch, messages=tuple(messages[start:at]))
                start, size = at, 0
            size += weight
        if len(messages) - start == len(batch.messages) and (
            messages or lane is ConnectionClass.CONTROL
        ):
            yield lane, batch
        elif messages:
            yield lane, replace(batch, messages=tuple(messages[start:]))


def _weight(message: AnyMessage) -> int:
    if isinstance(message, AppendEntries | Suffix):
        return sum(len(e.payload) for e in message.entries)
    return 0


class PeerLane(asyncio.Protocol):
    """The sending end of one connection to one peer. It connects when there is a frame to send."""

    def __init__(
        self,
        env: Env,
        address: str,
        hello: PeerBatch,
        cluster_id: Callable[[], str],
        limits: PeerLimits,
        refused: Callable[[ServerUuid], None],
        credentials: Credentials | None = None,
    ) -> None:
        self.dropped = 0
        self._refused = refused
        self._credentials = credentials
        self._checks_left = 0
        self._env = env
        self._address = address
        self._hello = hello
        self._cluster_id = cluster_id
        self._limits = limits
        self._backoff = Backoff(env.random, min(20, limits.backoff_max_ms), limits.backoff_max_ms)
        self._transport: asyncio.WriteTransport | None = None
        self._dialling = False
        self._closed = False
        self._lost = asyncio.Event()
        self._retry_at_us = 0
        self._connected_at_us = 0
        self._used_us = env.clock.monotonic_us()
        self._waiting: list[Sequence[bytes]] = []
        self._waiting_bytes = 0

    def send(self, frame: Sequence[bytes]) -> None:
        """Send a frame (in pieces); it is queued while connecting, and dropped when the buffer is full."""
        self._used_us = self._env.clock.monotonic_us()
        size = sum(map(len, frame))
        made = self._transport
        buffered = self._waiting_bytes if made is None else made.get_write_buffer_size()
        closed = self._closed or (made is not None and made.is_closing())
        if closed or buffered + size > self._limits.send_buffer_bytes:
            self.dropped += 1
        elif made is not None:
            made.writelines(frame)
        elif self._dialling or self._env.clock.monotonic_us() >= self._retry_at_us:
            self._waiting.append(frame)
            self._waiting_bytes += size
            self._start_dialling()
        else:
            self.dropped += 1

    def _start_dialling(self) -> None:
        if self._transport is None and not self._dialling and not self._closed:
            self._dialling = True
            self._env.tasks.spawn(self._dial(), f"dial {self._address}")

    def idle_us(self) -> int:
        """Return the time since the last frame, in microseconds."""
        return self._env.clock.monotonic_us() - self._used_us

    def abort(self) -> None:
        """Close the connection at once; later frames are dropped."""
        self._closed = True
        self._forget_waiting()
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """As `abort`, and wait until the connection is closed."""
        self.abort()
        if self._transport is not None:
            await self._lost.wait()

    async def _dial(self) -> None:
        made = False
        try:
            host, port = addresses.parse(self._address)
            timeout_ms = self._limits.connect_timeout_ms
            await dial(lambda: self, host, port, timeout_ms, self._credentials)
            made = True
        except (OSError, NyalaError, UnicodeError) as err:  # TimeoutError is an OSError
            log.debug("peer %s at %s: %s", self._hello.to, self._address, err)
            self._pause()
            self._forget_waiting()
            if isinstance(err, ConnectionRefusedError):
                self._refused(self._hello.to)
        finally:
            self._dialling = False
            if not made and self._transport is not None:
                # Connected and timed out at once: the loop closed it without calling connection_lost.
                self._transport.abort()
                self.connection_lost(None)

    def _pause(self) -> None:
        self._retry_at_us = self._env.clock.monotonic_us() + 1000 * self._backoff.next_ms()

    def _forget_waiting(self) -> None:
        self.dropped += len(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send HELLO, then the queued frames."""
        self._transport = configured(transport, self._limits.silence_ms)
        self._lost.clear()
        if self._closed or self._is_revoked(transport):
            self._forget_waiting()
            self._transport.abort()
            return
        self._connected_at_us = self._env.clock.monotonic_us()
        self._transport.write(encode_frame(self._hello, self._cluster_id(), FrameKind.HELLO))
        for frame in self._waiting:
            self._transport.writelines(frame)
        self._waiting.clear()
        self._waiting_bytes = 0

    def _is_revoked(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether the certificate of the other end was revoked: it gets no frame."""
        if self._credentials is None:
            return False
        try:
            identity_of_connection(transport, self._credentials)
        except NyalaError as err:
            log.warning("peer %s at %s: %s", self._hello.to, self._address, err)
            return True
        return False

    def data_received(self, data: bytes) -> None:
        """Close the connection: the accepting end of the peer port sends nothing."""
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Reconnect at the next frame after a pause; a few times without one, to detect an exited peer."""
        self._transport = None
        self._lost.set()
        lived_us = self._env.clock.monotonic_us() - self._connected_at_us
        if lived_us >= 1000 * self._limits.good_connection_ms:
            self._backoff.reset()
            self._checks_left = CHECKS_AFTER_LOSS
        self._pause()
        if self._checks_left and not self._closed:
            self._checks_left -= 1
            pause_us = self._retry_at_us - self._env.clock.monotonic_us()
            asyncio.get_running_loop().call_later(max(0, pause_us) / 1e6, self._start_dialling)
