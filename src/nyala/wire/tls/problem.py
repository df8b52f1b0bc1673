"""Why a public port does not answer: it accepts no connection, TLS fails, or it is another port of a server.

gRPC says too little of the latter two.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

from nyala.common import addresses
from nyala.common.errors import InvalidArgument, NyalaError, Unauthenticated
from nyala.security import known
from nyala.security.credentials import PUBLIC_PROTOCOL, Credentials
from nyala.security.files import ENVIRONMENT, VARIABLES
from nyala.wire.connection import connect
from nyala.wire.tls import untrusted

CONNECT_MS = 500
"""Time within which a server that runs accepts a connection, in milliseconds."""
HANDSHAKE_S = 1.0
"""Time for the handshake, and for the server's answer to the certificate, in seconds."""
WEB, OTHER = (
    "is the web port of a server",
    "is a port that servers use among themselves, or a join port",
)


async def connection_problem(address: str, credentials: Credentials | None) -> NyalaError | None:
    """Return why a client gets no answer from the public port at an address.

    Args:
        address: host:port.
        credentials: of the client; None: it uses no encryption.

    Returns:
        Unauthenticated: client and server do not agree on TLS; InvalidArgument: the port is none for clients;
        None: another reason.
    """
    try:
        host, port = addresses.parse(address)
        async with asyncio.timeout(3 * HANDSHAKE_S):
            if credentials is None:
                return await _without_credentials(address, host, port)
            return await _with_credentials(address, host, port, credentials)
    except (OSError, TimeoutError, NyalaError, UnicodeError):
        return None


async def accepts_connections(address: str) -> bool:
    """Return whether the server at an address accepts a connection, whatever it does afterwards.

    Args:
        address: host:port of a public port.
    """
    try:
        (await connect(*addresses.parse(address), CONNECT_MS)).close()
    except (OSError, NyalaError, UnicodeError):  # TimeoutError is an OSError
        return False
    return True


async def _without_credentials(address: str, host: str, port: int) -> NyalaError | None:
    try:
        async with _connected(host, port, _any_server()) as (reader, writer):
            if not _is_public(writer):
                return await _other_port(address, host, reader, writer)
    except ssl.SSLError:  # it does not use TLS either
        async with _connected(host, port, None) as (reader, writer):
            web = await _answers_http(host, reader, writer)
            return _wrong_port(address, WEB) if web else None
    return Unauthenticated(
        f"the server at {address}: it accepts encrypted connections only; give ca, cert and key, or set "
        f"NYALA_CA, NYALA_CERT and NYALA_KEY. None are noted for this user in {known.usual_folder()}: nyala "
        "up notes them for the user who runs it, whom another user asks for an account (nyala user add, "
        "nyala login)"
    )


async def _with_credentials(
    address: str, host: str, port: int, credentials: Credentials
) -> NyalaError | None:
    try:
        async with _connected(host, port, credentials.public_context()) as (reader, writer):
            if not _is_public(writer):
                return await _other_port(address, host, reader, writer)
            if await _is_accepted(reader):
                return None
    except ssl.SSLCertVerificationError as err:
        why = untrusted.explained(err.verify_message, host) + _noted(credentials)
    except ssl.SSLError:
        why = f"it does not use TLS; {_way_without(credentials)}"
    else:
        why = (
            f"it refuses the certificate {credentials.files.cert}; use one that its own authority has made, "
            "and that is not revoked (nyala login, nyala cert user)" + _noted(credentials)
        )
    return Unauthenticated(f"the server at {address}: {why}")


@contextlib.asynccontextmanager
async def _connected(
    host: str, port: int, tls: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield reader and writer of a connection, which is aborted: a server may take long to answer its end.

    Args:
        host: to connect to.
        port: to connect to.
        tls: context; None: without encryption.

    Raises:
        OSError: it is not made; an ssl.SSLError when TLS fails.
    """
    sock = await connect(host, port, int(HANDSHAKE_S * 1000))
    name = None if tls is None else host
    reader, writer = await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=name)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _is_public(writer: asyncio.StreamWriter) -> bool:
    """Return whether the other end is gRPC, which alone of all ports chooses its protocol."""
    made: ssl.SSLObject = writer.get_extra_info("ssl_object")
    return made.selected_alpn_protocol() == PUBLIC_PROTOCOL


async def _is_accepted(reader: asyncio.StreamReader) -> bool:
    """Return whether the server keeps the connection: in TLS 1.3 it refuses a client after the handshake."""
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            return bool(await reader.read(1))
    except TimeoutError:
        return True
    except OSError:  # an alert of TLS is one
        return False


async def _other_port(
    address: str, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> NyalaError:
    web = await _answers_http(host, reader, writer)
    return _wrong_port(address, WEB if web else OTHER)


async def _answers_http(
    host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Return whether the other end answers a request as the web port does."""
    try:
        writer.write(f"GET /style.css HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        async with asyncio.timeout(HANDSHAKE_S):
            return await reader.readexactly(7) == b"HTTP/1."
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return False


def _wrong_port(address: str, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{address} {what}; clients connect to the public port of a master, --address of nyala master run "
        "(7051 if it is not given): nyala master list shows it, nyala status for a cluster of nyala up, and "
        "the page of each server as its address"
    )


def _way_without(credentials: Credentials) -> str:
    """Return how to connect without these credentials."""
    source = credentials.files.source
    if not source:
        return "omit ca, cert and key"
    if source == ENVIRONMENT:
        return f"unset {', '.join(VARIABLES)}"
    return f"remove {source}, which an earlier cluster at this address left"


def _noted(credentials: Credentials) -> str:
    """Return what to do if the credentials are those noted for an earlier cluster; empty: they are not."""
    source = credentials.files.source
    if source in ("", ENVIRONMENT):
        return ""
    return (
        f". The certificates are those that {source} names; remove it if the cluster is another one"
    )


def _any_server() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([PUBLIC_PROTOCOL])
    return context
