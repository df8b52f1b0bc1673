"""Limits of messages and connections, and keep-alive, as values and as gRPC options."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from nyala.common.errors import Unavailable

MIB = 1 << 20
MESSAGE_BYTES = 64 * MIB
"""The same on every server and client, whatever their options: the largest row (1,000 columns of 64 KiB) and
the largest entry on its way to a copy (`write_max_bytes`) fit, with what is around them."""


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
                f"the reader took nothing for {self.unread_ms} ms, so its stream was ended; read on from "
                "where it was, or raise reader_silent_ms"
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


def close_when_silent(transport: asyncio.BaseTransport, silence_ms: int) -> None:
    """Have the kernel close a connection whose bytes are not acknowledged (TCP_USER_TIMEOUT, Linux).

    Without it a peer that vanished costs a quarter of an hour of buffered bytes.

    Args:
        transport: of a TCP connection.
        silence_ms: longest time without an acknowledgement.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    sock = transport.get_extra_info("socket")
    if option is not None and sock is not None:
        sock.setsockopt(socket.IPPROTO_TCP, option, silence_ms)
