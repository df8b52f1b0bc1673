"""The join port of a master: TLS 1.3 without a certificate of the caller, for one request only.

A caller first asks for the certificate of the authority, whose hash its token contains. It then connects
again, verifies the master with that certificate, and sends token and request. Users log in at it in the same
way. Any master passes the request on to the leader. The port answers nothing else.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable

from nyala.common import addresses
from nyala.common.errors import InvalidArgument, NyalaError, Throttled
from nyala.security.credentials import Credentials
from nyala.security.limits.shares import Shares
from nyala.wire import status
from nyala.wire.connection import HANDSHAKE_S
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.tls import join_frames
from nyala.wire.tls.bounded_lines import BoundedLines

log = logging.getLogger(__name__)
log.addFilter(BoundedLines())

MAX_CONNECTIONS = 64
MAX_OF_HOST = 16
"""Connections of one address at a time, so that others can log in."""


class JoinPort:
    """Accepts servers that join and users who log in.

    Args:
        credentials: of this master.
        join: answers a request with a token, or a login.
    """

    def __init__(
        self,
        credentials: Credentials,
        join: Callable[[pb.JoinRequest], Awaitable[pb.JoinResponse]],
    ) -> None:
        self._credentials = credentials
        self._join = join
        self._open = 0
        self._hosts = Shares("connections to the join port", MAX_OF_HOST, "a fixed limit")
        self._server: asyncio.Server | None = None

    async def listen(self, address: str) -> str:
        """Bind and accept; return the address with its port.

        Raises:
            InvalidArgument: not an address, or its port is in use.
        """
        host, port = addresses.to_bind(address, secured=True)
        try:
            self._server = await asyncio.start_server(
                self._serve, host, port, ssl=self._credentials.join_context(),
                ssl_handshake_timeout=HANDSHAKE_S, limit=join_frames.MAX_BYTES,
            )  # fmt: skip
        except OSError as err:
            raise InvalidArgument(
                f"cannot listen for servers that join on {address}: {os.strerror(err.errno or 0)}; stop the "
                "process that uses the port, or choose another one (--join-address)"
            ) from err
        return addresses.join(host, int(self._server.sockets[0].getsockname()[1]))

    async def close(self) -> None:
        """Stop accepting; connections end within the time of an exchange."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        host = str(writer.get_extra_info("peername")[0])
        try:
            if self._open <= MAX_CONNECTIONS:
                async with asyncio.timeout(join_frames.EXCHANGE_S):
                    await self._exchange(reader, writer, host)
        except (OSError, asyncio.IncompleteReadError, NyalaError) as err:  # TimeoutError is one
            log.info("join port: a connection was closed: %s", err)
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str
    ) -> None:
        """Answer the request of a connection from an address."""
        try:
            with self._hosts.hold(host):
                request = await join_frames.receive_request(reader)
                if request.HasField("login"):
                    request.login.peer_host = host
                await join_frames.send(writer, await self._answer(request))
        except Throttled as err:
            await join_frames.send(writer, pb.JoinResponse(error=status.to_proto(err)))
            raise

    async def _answer(self, request: pb.JoinRequest) -> pb.JoinResponse:
        if not request.csr:
            return pb.JoinResponse(ca=self._credentials.pem.ca)
        try:
            return await self._join(request)
        except Exception as err:  # the top of a request: the caller learns why
            failure = status.as_nyala_error(err, "Join")
            who = (
                f"user {request.login.name[:64]!r} did not log in"
                if request.HasField("login")
                else f"server {request.uuid[:64]} did not join"
            )
            log.warning("%s: %s", who, failure)
            return pb.JoinResponse(error=status.to_proto(failure))
