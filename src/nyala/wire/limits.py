"""Limits of messages and connections, and keep-alive: of gRPC, the stream port and the peer port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nyala.common.errors import Unavailable

MIB = 1 << 20
MESSAGE_BYTES = 64 * MIB
"""The same on every server and client, whatever their options: the largest row (1,000 columns of 64 KiB) and
the largest entry on its way to a copy (`write_max_bytes`) fit, with what is around them."""

SILENCE_MS = 10_000
"""The kernel closes a connection of either own port whose bytes are not acknowledged for this long."""


@dataclass(frozen=True, slots=True)
class RpcLimits:
    """Limits of gRPC on either side of a connection.

    Attributes:
        message_bytes: largest message sent or received (Kudu's rpc_max_message_size is 50 MiB,
            gRPC's own limit 4 MiB); over it: TOO_LARGE, before the message is read whole.
        concurrent_streams: calls in flight on one connection of a server; further ones wait.
        metadata_bytes: headers and trailers of a call.
        keepalive_ms: a connection with calls in flight is probed after so long without traffic.
        keepalive_timeout_ms: and is given up when the probe is not answered within this time.
        connect_timeout_ms: for a connection to be made.
        reconnect_max_ms: longest pause between two attempts to connect.
        unread_ms: a stream whose reader takes nothing for so long is ended; that of our own clients sooner.
        resolve_again_ms: a name that led nowhere is looked up again after so long, and may lead elsewhere.
    """

    message_bytes: int = MESSAGE_BYTES
    concurrent_streams: int = 1024
    metadata_bytes: int = 16 << 10
    keepalive_ms: int = 5_000
    keepalive_timeout_ms: int = 5_000
    connect_timeout_ms: int = 2_000
    reconnect_max_ms: int = 500
    unread_ms: int = 60_000
    resolve_again_ms: int = 1_000

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[None]:
        """Send something within the block, unless the reader takes nothing for too long.

        Raises:
            Unavailable: it did; what its stream holds is to be let go.
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
        """Options of a gRPC server. Two servers never share a port."""
        return [
            *self._common(),
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", self.concurrent_streams),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", self.keepalive_ms // 2),
            ("grpc.http2.max_ping_strikes", 0),  # keepalive of many streams is no abuse
        ]

    def channel_options(self) -> list[tuple[str, int]]:
        """Options of a gRPC channel. No proxy of the environment stands between servers."""
        return [
            *self._common(),
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", min(50, self.reconnect_max_ms)),
            ("grpc.min_reconnect_backoff_ms", self.connect_timeout_ms),
            ("grpc.max_reconnect_backoff_ms", self.reconnect_max_ms),
            ("grpc.dns_min_time_between_resolutions_ms", self.resolve_again_ms),
        ]


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Limits of the peer port.

    Attributes:
        frame_bytes: largest frame accepted; must hold the largest entry and its message.
        batch_bytes: a batch with more entry bytes than this is cut into several frames.
        send_buffer_bytes: per lane and peer; what does not fit is dropped.
        connections: accepted at a time; further ones are closed at once.
        connect_timeout_ms: for a connection to be made.
        backoff_max_ms: longest pause after a failed attempt; below the election timeout.
        good_connection_ms: one that lived so long ends the growth of the pauses.
        hello_ms: an accepted connection that has not said by then who it is, is closed.
        silence_ms: a connection whose bytes are not acknowledged for so long is given up.
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
