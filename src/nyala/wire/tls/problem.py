"""Why a server does not answer: it accepts no connection, or TLS fails, of which gRPC says too little."""

import asyncio
import contextlib
import ssl

from nyala.common import addresses
from nyala.common.errors import NyalaError
from nyala.security import known
from nyala.security.credentials import Credentials
from nyala.security.files import ENVIRONMENT, VARIABLES
from nyala.wire.connection import connect

CONNECT_MS = 500
"""Time within which a server that runs accepts a connection, in milliseconds."""
HANDSHAKE_S = 1.0
"""Time for the handshake, and for the server's answer to the certificate, in seconds."""


async def tls_problem(address: str, credentials: Credentials | None) -> str:
    """Return why a client and the server at an address do not agree on TLS; empty: not because of TLS.

    Args:
        address: host:port of a public port.
        credentials: of the client; None: it uses no encryption.
    """
    try:
        host, port = addresses.parse(address)
        context = _any_server() if credentials is None else credentials.client_context()
        async with asyncio.timeout(2 * HANDSHAKE_S):
            sock = await connect(host, port, int(HANDSHAKE_S * 1000))
            reader, writer = await asyncio.open_connection(
                sock=sock, ssl=context, server_hostname=host
            )
    except ssl.SSLCertVerificationError as err:
        return (
            f"its certificate does not fit: {err.verify_message}; check that ca is the ca.crt of this "
            f"cluster, and that the certificate of the server names the host {host} (nyala cert show)"
            + _noted(credentials)
        )
    except ssl.SSLError:
        return "" if credentials is None else f"it does not use TLS; {_way_without(credentials)}"
    except (OSError, TimeoutError, NyalaError, UnicodeError):
        return ""
    try:
        return await _answer_to_certificate(reader, credentials)
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(HANDSHAKE_S):
                await writer.wait_closed()


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


async def _answer_to_certificate(
    reader: asyncio.StreamReader, credentials: Credentials | None
) -> str:
    """Return why the server closes the connection, which it does after the handshake (TLS 1.3)."""
    if credentials is None:
        return (
            "it accepts encrypted connections only; give ca, cert and key, or set NYALA_CA, NYALA_CERT and "
            f"NYALA_KEY. None are noted for this user in {known.usual_folder()}: nyala up notes them for the "
            "user who runs it, whom another user asks for an account (nyala user add, nyala login)"
        )
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            accepted = bool(await reader.read(1))
    except TimeoutError:
        return ""
    except OSError:  # an alert of TLS is one
        accepted = False
    if accepted:
        return ""
    return (
        f"it refuses the certificate {credentials.files.cert}; use one that its own authority has made, "
        "and that is not revoked (nyala login, nyala cert user)" + _noted(credentials)
    )


def _way_without(credentials: Credentials) -> str:
    """Return how to connect without these credentials."""
    source = credentials.files.source
    if not source:
        return "omit ca, cert and key"
    if source == ENVIRONMENT:
        return f"unset {', '.join(VARIABLES)}"
    return f"remove {source}, which an earlier cluster at this address left"


def _noted(credentials: Credentials | None) -> str:
    """Return what to do if the credentials are those noted for an earlier cluster; empty: they are not."""
    source = "" if credentials is None else credentials.files.source
    if source in ("", ENVIRONMENT):
        return ""
    return (
        f". The certificates are those that {source} names; remove it if the cluster is another one"
    )


def _any_server() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
