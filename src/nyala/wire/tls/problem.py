"""Why TLS with a server fails, in words: gRPC reports a closed connection only."""

import asyncio
import contextlib
import ssl

from nyala.common import addresses
from nyala.common.errors import NyalaError
from nyala.security.credentials import Credentials

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
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLCertVerificationError as err:
        return (
            f"its certificate does not fit: {err.verify_message}; check that ca is the ca.crt of this "
            f"cluster, and that the certificate of the server names the host {host} (nyala cert show)"
        )
    except ssl.SSLError:
        return "" if credentials is None else "it does not use TLS; omit ca, cert and key"
    except (OSError, TimeoutError, NyalaError, UnicodeError):
        return ""
    try:
        return await _answer_to_certificate(reader, credentials)
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(HANDSHAKE_S):
                await writer.wait_closed()


async def _answer_to_certificate(
    reader: asyncio.StreamReader, credentials: Credentials | None
) -> str:
    """Return why the server closes the connection, which it does after the handshake (TLS 1.3)."""
    if credentials is None:
        return (
            "it accepts encrypted connections only; give ca, cert and key, or set NYALA_CA, NYALA_CERT and "
            "NYALA_KEY"
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
        f"it refuses the certificate {credentials.files.cert}; use one that its own authority has made "
        "(nyala cert user)"
    )


def _any_server() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
