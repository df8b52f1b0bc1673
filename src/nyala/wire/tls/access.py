"""Checks of callers at the ports of a server that has credentials: who calls, and whether they may.

A server without credentials listens on loopback only and checks nothing; its callers have no principal.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from nyala.common.errors import NyalaError
from nyala.env.rpc import Method
from nyala.security import policy
from nyala.security.principal import Principal, principal_of
from nyala.wire import methods, status
from nyala.wire.proto import reads_pb2 as pb

_NAMES = "x509_subject_alternative_name"


def principal_of_call(context: Any) -> Principal:
    """Return the caller of a gRPC call, from its verified certificate.

    Raises:
        Unauthenticated: the certificate is no user's or server's.
    """
    known: Mapping[str, list[bytes]] = context.auth_context()
    return principal_of(raw.decode(errors="replace") for raw in known.get(_NAMES, ()))


def principal_of_connection(transport: asyncio.BaseTransport) -> Principal:
    """Return the other end of a TLS connection, from its verified certificate.

    Raises:
        Unauthenticated: the certificate is no user's or server's.
    """
    certificate = transport.get_extra_info("peercert") or {}
    names = certificate.get("subjectAltName", ())
    return principal_of(value for kind, value in names if kind == "URI")


def checked(method: Method, handler: Callable[..., Any], caller: Principal | None) -> Any:
    """Return the handler of a method for a caller; calls inside of a stream of calls are checked one by one.

    Args:
        method: the method.
        handler: its handler.
        caller: None: the server has no credentials.

    Raises:
        Forbidden: the caller may not call it.
    """
    if caller is None:
        return handler
    policy.check(caller, method.path)
    if method is not methods.CALL:
        return handler

    def call(request: pb.CallRequest, answer: Callable[[pb.CallResponse], None]) -> None:
        try:
            policy.check(caller, request.method)
        except NyalaError as err:
            answer(pb.CallResponse(request=request.request, error=status.to_proto(err)))
        else:
            handler(request, answer)

    return call
