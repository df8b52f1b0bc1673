"""Connections of nyala's own transports (peer port and stream port): dial, listen, detect silent peers.

Both ports are TCP on the event loop, with TLS if the process has credentials. Shared here and in
`framing.py`: connecting with a time-out, accepting up to a limit and closing all, keep-alive and the closing
of silent connections by the kernel, the receive buffer and the validation of a header.

Sending differs by port, since a full buffer has a different effect. The peer port drops the frame and
continues (`peers.py`): Raft sends it again, and one slow peer must not delay the others. The stream port
suspends its sender (`stream_end.py`): no frame of a stream may be lost. The timers of accepted connections
differ too: between peers, a frame that has begun must be complete within `hello_ms`, as nothing else limits
its time; an open stream is limited by the deadline of its caller.
"""

import asyncio
import contextlib
import logging
import socket
from asyncio.staggered import staggered_race
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, cast

from nyala.common.errors import Unauthenticated
from nyala.security.credentials import Credentials
from nyala.wire.tls.access import identity_of_connection, whole_identity
from nyala.wire.tls.bounded_lines import BoundedLines

P = TypeVar("P", bound=asyncio.BaseProtocol)

log = logging.getLogger(__name__)
log.addFilter(BoundedLines())

HANDSHAKE_S = 5.0
"""Time, in seconds, for the TLS handshake of a connection, at both ends."""
NEXT_ADDRESS_S = 0.25
"""Longest time, in seconds, for which one address of a host is tried alone; RFC 8305 recommends this one."""
EXPIRED_S = 10.0
"""Time, in seconds, after which accepted connections are closed at the latest when their certificate ends, or
its authority was retired. It is longer than a handshake: two checks find those that were made meanwhile.
"""


def configured(transport: asyncio.BaseTransport, silence_ms: int) -> asyncio.Transport:
    """Return the transport of a new connection, which the kernel closes when the other end is silent.

    An idle connection is probed (SO_KEEPALIVE); one whose bytes are not acknowledged is closed
    (TCP_USER_TIMEOUT, Linux). Otherwise bytes to a vanished peer would be buffered for a quarter of an hour.

    Args:
        transport: asyncio transport of a TCP connection.
        silence_ms: maximum time without an acknowledgement.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, silence_ms)
    return cast("asyncio.Transport", transport)  # uvloop's is no subclass


async def connect(host: str, port: int, timeout_ms: int) -> socket.socket:
    """Return a TCP connection, not blocking, to the address of a host that accepts one first.

    The addresses are tried in their order, each one as soon as the try before it has failed, or has lasted
    for `NEXT_ADDRESS_S`, as in RFC 8305 ("Happy Eyeballs"). uvloop's own connections lack that.

    Args:
        host: to connect to.
        port: to connect to.
        timeout_ms: for all addresses of the host, with their look-up.

    Raises:
        OSError: there is none; a TimeoutError when it took too long.
    """
    with contextlib.ExitStack() as unused:  # all of them, if this call is cancelled as one is made
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                found = await _resolved(host, port)
                tries = [partial(_connect_to, unused, *one) for one in found]
                pause_s = min(NEXT_ADDRESS_S, timeout_ms / 1000 / (len(tries) + 1))
                made, number, failures = await staggered_race(tries, pause_s)
        except TimeoutError:
            raise TimeoutError(
                f"{host}:{port} accepted no connection within {timeout_ms} ms"
            ) from None
        if number is None:
            raise next((e for e in reversed(failures) if e), OSError(f"{host} has no address"))
        unused.pop_all()  # the others are closed
        return cast("socket.socket", made)


async def _resolved(host: str, port: int) -> list[Any]:
    """Return the addresses of a host as getaddrinfo has them; an address needs none of the loop's threads.

    Those of a caller's own loop may all be busy.

    Raises:
        OSError: there are none.
    """
    try:
        numeric = socket.AI_NUMERICHOST
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric)
    except socket.gaierror:
        loop = asyncio.get_running_loop()
        return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def _connect_to(
    unused: contextlib.ExitStack, family: int, kind: int, protocol: int, _name: str, address: Any
) -> socket.socket:
    """Return a connection to one of the results of getaddrinfo.

    Args:
        unused: closes it, unless it is used.
        family: of addresses; this machine may lack it, which is an OSError as any other.
        kind: of socket.
        protocol: of the socket.
        _name: canonical name of the host, which is not used.
        address: as the family has it.
    """
    sock = socket.socket(family, kind, protocol)
    unused.callback(sock.close)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:  # CancelledError is one: another address was faster
        sock.close()
        raise
    return sock


async def dial(
    make: Callable[[], P],
    host: str,
    port: int,
    timeout_ms: int,
    credentials: Credentials | None = None,
) -> P:
    """Make a connection.

    Args:
        make: creates its protocol.
        host: to connect to.
        port: to connect to.
        timeout_ms: for the TCP connection to be made; the TLS handshake after it has `HANDSHAKE_S`.
        credentials: of this process, for TLS; None: no encryption.

    Raises:
        OSError: it could not be made; a TimeoutError when it took too long.
    """
    tls = None if credentials is None else credentials.client_context()
    sock, loop = await connect(host, port, timeout_ms), asyncio.get_running_loop()
    if credentials is None:
        return (await loop.create_connection(make, sock=sock))[1]
    transport, made = await loop.create_connection(
        make, sock=sock, ssl=tls, server_hostname=host, ssl_handshake_timeout=HANDSHAKE_S
    )
    try:
        identity_of_connection(transport, credentials)
    except Unauthenticated as err:
        transport.abort()
        raise ConnectionAbortedError(f"{host}:{port}: {err.message}") from err
    return made


class Listener(Generic[P]):
    """Accepts connections of one port, up to a limit, and closes them.

    Args:
        port: name of the port, for the log.
        limit: connections open at a time.
        credentials: of the server, for TLS; None: no encryption.
    """

    def __init__(self, port: str, limit: int, credentials: Credentials | None = None) -> None:
        self._port = port
        self.credentials = credentials
        self._limit = limit
        self._open: dict[P, asyncio.BaseTransport] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._retirements = (0, 0)  # seen by the last two checks

    async def listen(self, make: Callable[[], P], host: str, port: int) -> int:
        """Bind and accept; return the port that was bound.

        Args:
            make: creates the protocol of an accepted connection, which calls `admit` and `remove`.
            host: to bind.
            port: to bind; 0: any free one.

        Raises:
            OSError: the address cannot be bound.
        """
        if self.credentials is not None:
            self.credentials.revocations.on_change(self._close_invalid)
            self._retirements = (self.credentials.retirements,) * 2
            self._timer = asyncio.get_running_loop().call_later(EXPIRED_S, self._close_expired)
        tls = None if self.credentials is None else self.credentials.server_context()
        handshake_s = None if tls is None else HANDSHAKE_S
        self._server = await asyncio.get_running_loop().create_server(
            make, host, port, ssl=tls, ssl_handshake_timeout=handshake_s
        )
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def full(self) -> bool:
        """True while as many connections are open as may be."""
        return len(self._open) >= self._limit

    def admit(self, connection: P, transport: asyncio.BaseTransport) -> bool:
        """Count a new connection; return False if there are too many and it must be closed.

        Args:
            connection: its protocol.
            transport: its transport.
        """
        if self.full:
            log.warning("%s: more than %d connections; one was refused", self._port, self._limit)
            return False
        self._open[connection] = transport
        self._empty.clear()
        return True

    def _close_expired(self) -> None:
        """Close the connections whose certificates have expired, or are of a retired authority; and again.

        Those made after a retirement were verified without that authority, and need no check of it.
        """
        assert self.credentials is not None
        before, last = self._retirements
        self._retirements = last, self.credentials.retirements
        self._close_invalid(retired=before != self.credentials.retirements)
        self._timer = asyncio.get_running_loop().call_later(EXPIRED_S, self._close_expired)

    def _close_invalid(self, *, retired: bool = False) -> None:
        """Close the connections whose certificates have expired or are revoked.

        Args:
            retired: those too whose certificates no trusted authority has issued.
        """
        assert self.credentials is not None
        for transport in list(self._open.values()):
            try:
                identity_of_connection(transport, self.credentials)
                if retired:
                    self.credentials.check_authority(whole_identity(transport))
            except Unauthenticated as err:
                log.warning("%s: a connection was closed: %s", self._port, err)
                cast("asyncio.Transport", transport).abort()

    def remove(self, connection: P) -> None:
        """Remove a lost connection, admitted or not."""
        self._open.pop(connection, None)
        if not self._open:
            self._empty.set()

    async def close(self, end: Callable[[P], None], grace_ms: int = 0) -> None:
        """Stop accepting, wait for connections to end, then close them; return when all are closed.

        Args:
            end: closes a connection at once.
            grace_ms: time that connections have to end by themselves.
        """
        if self._server is None:
            return
        self._server.close()
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_ms / 1000):
                await self._empty.wait()
        for connection in list(self._open):
            end(connection)
        await self._empty.wait()
        await self._server.wait_closed()
        self._server = None
