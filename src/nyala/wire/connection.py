"""Connections of the two own transports (the peer port and the stream port): dial, listen, detect silence.

Both ports are loopback TCP on the event loop. Shared here and in `framing.py`: making a connection within a
time, accepting up to a limit and closing all, keep-alive and the closing of silent connections by the kernel,
the receive buffer and the checks of a header.

Sending is each port's own, since a full buffer means something else. The peer port drops the frame and goes
on (`peers.py`): Raft sends it again, and one slow peer must not delay the others. The stream port makes its
sender wait (`stream_end.py`): nothing of a stream may be lost. So are the timers of accepted connections:
between peers a frame that has begun has to end within `hello_ms`, as nothing else limits its time; a stream
is limited by the deadline of its caller once it is open.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Generic, TypeVar, cast

P = TypeVar("P", bound=asyncio.BaseProtocol)

log = logging.getLogger(__name__)


def established(transport: asyncio.BaseTransport, silence_ms: int) -> asyncio.Transport:
    """Return the transport of a new connection, which the kernel closes when the other end is silent.

    An idle connection is probed (SO_KEEPALIVE); one whose bytes are not acknowledged is closed
    (TCP_USER_TIMEOUT, Linux). Without it a peer that vanished costs a quarter of an hour of buffered bytes.

    Args:
        transport: of a TCP connection.
        silence_ms: longest time without an acknowledgement.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, silence_ms)
    return cast("asyncio.Transport", transport)  # uvloop's is no subclass


async def dial(make: Callable[[], P], host: str, port: int, timeout_ms: int) -> P:
    """Make a connection.

    Args:
        make: makes its protocol.
        host: to connect to.
        port: to connect to.
        timeout_ms: for the connection to be made.

    Raises:
        OSError: it could not be made; a TimeoutError when it took too long.
    """
    async with asyncio.timeout(timeout_ms / 1000):
        _, made = await asyncio.get_running_loop().create_connection(make, host, port)
    return made


class Listener(Generic[P]):
    """Accepts connections of one port, up to a limit, and closes them.

    Args:
        port: name of the port, for the log.
        limit: connections open at a time.
    """

    def __init__(self, port: str, limit: int) -> None:
        self._port = port
        self._limit = limit
        self._open: dict[P, None] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._server: asyncio.Server | None = None

    async def listen(self, make: Callable[[], P], host: str, port: int) -> int:
        """Bind and accept; return the port that was bound.

        Args:
            make: makes the protocol of an accepted connection, which calls `admit` and `remove`.
            host: to bind.
            port: to bind; 0: any free one.

        Raises:
            OSError: it cannot be bound.
        """
        self._server = await asyncio.get_running_loop().create_server(make, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def admit(self, connection: P) -> bool:
        """Count a new connection; False: there are too many, and it is to be closed."""
        if len(self._open) >= self._limit:
            log.warning("%s: more than %d connections; one was refused", self._port, self._limit)
            return False
        self._open[connection] = None
        self._empty.clear()
        return True

    def remove(self, connection: P) -> None:
        """Forget a lost connection, admitted or not."""
        self._open.pop(connection, None)
        if not self._open:
            self._empty.set()

    async def close(self, end: Callable[[P], None], grace_ms: int = 0) -> None:
        """Accept nothing more, let connections end within a time, then end them; return when all are lost.

        Args:
            end: closes a connection at once.
            grace_ms: time that connections have to end by themselves.
        """
        if self._server is None:
            return
        self._server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_ms / 1000):
                await self._empty.wait()
        for connection in list(self._open):
            end(connection)
        await self._empty.wait()
        await self._server.wait_closed()
        self._server = None
