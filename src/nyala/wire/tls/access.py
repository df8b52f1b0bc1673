"""Checks of callers at the ports of a server that has credentials: who calls, and whether they may.

A caller whose role is not enough for a method may have grants on the tables of a request: then each request
is checked (`Requests`).

A server without credentials listens on loopback only and checks nothing; its callers have no principal.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from nyala.env.rpc import Method
from nyala.security import policy
from nyala.security.credentials import Credentials
from nyala.security.identity import PeerIdentity, identity_of_peer, identity_of_pem
from nyala.wire import methods
from nyala.wire.tls.requests import OnRefused, Requests, TableAccess, is_filtered

_PEM = "x509_pem_cert"


def identity_of_call(context: Any, credentials: Credentials) -> PeerIdentity:
    """Return the caller of a gRPC call, from its verified certificate.

    Args:
        context: of the call.
        credentials: of this process.

    Raises:
        Unauthenticated: the certificate is no user's or server's, has expired, was revoked, or is of an
            authority that was retired.
    """
    known: Mapping[str, list[bytes]] = context.auth_context()
    found = identity_of_pem(known.get(_PEM, [b""])[0])
    credentials.check(found)
    credentials.check_authority(found)
    return found


def whole_identity(transport: asyncio.BaseTransport) -> PeerIdentity:
    """Return the other end of a TLS connection with its certificate, which may not be valid any more.

    Args:
        transport: of the connection.

    Raises:
        Unauthenticated: it has no certificate, or one that is no user's or server's.
    """
    made: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    raw = None if made is None else made.getpeercert(binary_form=True)
    return identity_of_pem(b"" if raw is None else ssl.DER_cert_to_PEM_cert(raw).encode())


def identity_of_connection(
    transport: asyncio.BaseTransport, credentials: Credentials
) -> PeerIdentity:
    """Return the other end of a TLS connection, from its verified certificate.

    Args:
        transport: of the connection.
        credentials: of this process.

    Raises:
        Unauthenticated: the certificate is no user's or server's, has expired, or was revoked.
    """
    found = identity_of_peer(transport.get_extra_info("peercert") or {})
    credentials.check(found)
    return found


def checked(
    method: Method,
    handler: Callable[..., Any],
    caller: PeerIdentity | None,
    access: TableAccess | None,
    refused: OnRefused | None = None,
) -> Any:
    """Return the handler of a method for a caller; calls inside of a stream of calls are checked one by one.

    Args:
        method: the method.
        handler: its handler.
        caller: None: the server has no credentials.
        access: grants, and the tables of this server; None: there are none, or no credentials.
        refused: called with each request that is refused.

    Raises:
        Forbidden: the caller may not call it.
    """
    if caller is None:
        return handler
    principal = caller.principal
    whole = policy.check(principal, method.path)
    if whole and method is not methods.CALL and not is_filtered(principal, method):
        return handler
    if access is None and not whole:
        policy.refuse(principal, method.path)
    requests = Requests(principal, access, refused)
    if method is methods.CALL:
        return requests.calls(handler)
    return requests.checked(method, handler)
