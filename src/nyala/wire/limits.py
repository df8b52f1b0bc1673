"""Limits of messages and connections, and keep-alive: of gRPC, the stream port and the peer port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nyala.common.errors import Unavailable

MIB = 1 << 20
MESSAGE_BYTES = 64 * MIB
"""Maximum size of a message, in bytes, the same on every server and client whatever their options: the
largest row (1,000 columns of 64 KiB) and the largest entry sent to a copy (`write_max_bytes`) fit, with
overhead.
"""

SILENCE_MS = 10_000
"""Milliseconds after which the kernel closes a peer or stream connection with unacknowledged bytes."""


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """gRPC limits of clients and servers.

    Attributes:
        message_bytes: maximum message sent or received (Kudu's rpc_max_message_size is 50 MiB, gRPC's default
            4 MiB); above it TOO_LARGE, before the message is received completely.
        concurrent_streams: maximum calls in flight on one connection of a server; others wait.
        metadata_bytes: maximum headers and trailers of a call.
        keepalive_ms: time without traffic after which a connection with calls in flight is probed.
        keepalive_timeout_ms: time without an answer to a probe after which the connection is closed.
        connect_timeout_ms: maximum time for the TCP connection to a stream port; an address without a host is
            left after it.
        reconnect_max_ms: maximum backoff between two attempts to connect.
        unread_ms: time after which a stream whose reader reads nothing is ended; nyala's clients end it
            sooner.
        handshake_ms: of a server: maximum time for the TLS handshake of an accepted connection; of a client:
            maximum time to connect to a gRPC port, with the handshake, which a slow end ends late.
        resolve_again_ms: time after which a name whose address failed is resolved again.
        queued_bytes: of a client: received bytes of all its streams that no call has consumed, above which
            nothing is read from their connections; one message of each stream always has room.
        user_calls_max: of a server: calls in flight of one user.
        user_streams_max: of a server: connections of one user to the stream port.
    """

    message_bytes: int = MESSAGE_BYTES
    concurrent_streams: int = 1024
    metadata_bytes: int = 16 << 10
    keepalive_ms: int = 5_000
    keepalive_timeout_ms: int = 5_000
    connect_timeout_ms: int = 2_000
    reconnect_max_ms: int = 500
    unread_ms: int = 60_000
    handshake_ms: int = 5_000
    resolve_again_ms: int = 1_000
    queued_bytes: int = 8 * MIB
    user_calls_max: int = 4096
    user_streams_max: int = 768

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Bound the time of a send within the block, which waits while the reader reads nothing.

        Raises:
            Unavailable: the time is over; the caller releases the resources of the stream.
        """
        try:
            async with asyncio.timeout(self.unread_ms / 1000):
                yield
        except TimeoutError as err:
            raise Unavailable(
                f"the client read nothing for {self.unread_ms} ms, so the stream was closed; resume the "
                "scan, or raise reader_silent_ms"
            ) from err

    def _common(self) -> list[tuple[str, int]]:
        return [
            ("grpc.max_receive_message_length", self.message_bytes),
            ("grpc.max_send_message_length", self.message_bytes),
            ("grpc.max_metadata_size", self.metadata_bytes),
            ("grpc.absolute_max_metadata_size", 2 * self.metadata_bytes),
            ("grpc.keepalive_time_ms", self.keepalive_ms),
            ("grpc.keepalive_timeout_ms", self.keepalive_timeout_ms),
            ("grpc.http2.max_pings_without_data", 0),
        ]

    def server_options(self) -> list[tuple[str, int]]:
        """Options of a gRPC server, with SO_REUSEPORT off: two servers never share a port."""
        return [
            *self._common(),
            ("grpc.so_reuseport", 0),
            # No compression: a small message could have GiB.
            ("grpc.compression_enabled_algorithms_bitset", 1),
            ("grpc.max_concurrent_streams", self.concurrent_streams),
            ("grpc.server_handshake_timeout_ms", self.handshake_ms),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", self.keepalive_ms // 2),
            ("grpc.http2.max_ping_strikes", 0),  # many streams' pings are no abuse
        ]

    def channel_options(self) -> list[tuple[str, int]]:
        """Options of a gRPC channel; proxies of the environment (http_proxy) are not used."""
        return [
            *self._common(),
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", min(50, self.reconnect_max_ms)),
            ("grpc.min_reconnect_backoff_ms", self.handshake_ms),
            ("grpc.max_reconnect_backoff_ms", self.reconnect_max_ms),
            ("grpc.dns_min_time_between_resolutions_ms", self.resolve_again_ms),
        ]


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Limits of the peer port.

    Attributes:
        frame_bytes: maximum frame accepted; must exceed the largest entry and its message.
        batch_bytes: entry bytes of a batch above which it is split into several frames.
        send_buffer_bytes: send buffer per lane and peer; frames that do not fit are dropped.
        connections: maximum accepted connections; others are closed at once.
        connect_timeout_ms: maximum time for the TCP connection.
        backoff_max_ms: maximum backoff after a failed attempt; below the election timeout.
        good_connection_ms: lifetime of a connection after which the backoff is reset.
        hello_ms: time after which an accepted connection without a HELLO is closed.
        silence_ms: time with unacknowledged bytes after which a connection is closed.
    """

    frame_bytes: int = 64 * MIB
    batch_bytes: int = 4 * MIB
    send_buffer_bytes: int = 64 * MIB
    connections: int = 256
    connect_timeout_ms: int = 1_000
    backoff_max_ms: int = 250
    good_connection_ms: int = 1_000
    hello_ms: int = 5_000
    silence_ms: int = SILENCE_MS
