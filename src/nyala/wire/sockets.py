"""Socket options that the peer port and the stream port share."""

import asyncio
import socket


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
