"""The public port: one gRPC server for every handler, health and reflection; starts the stream port as well.

Handlers are plain async methods (`env/rpc.py`) without gRPC. `_Call` wraps each call: it decodes, counts,
logs, and converts errors to statuses; no error of a handler ends the process.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from nyala.common import addresses
from nyala.common.errors import (
    Forbidden,
    InvalidArgument,
    NyalaError,
    Throttled,
    TooLarge,
    Unauthenticated,
)
from nyala.env.request_stream import responses_to
from nyala.env.rpc import Handlers, Method, Shape
from nyala.security import policy
from nyala.security.credentials import Credentials
from nyala.security.identity import CALLER, user_name
from nyala.security.limits.shares import Shares
from nyala.wire import methods, status
from nyala.wire.limits import RpcLimits
from nyala.wire.rpc_metrics import CallUnderWay, RpcMetrics, note_user
from nyala.wire.stream_server import StreamServer
from nyala.wire.streams.calls import CallServer
from nyala.wire.tls.access import checked, identity_of_call
from nyala.wire.tls.auditing import Audit, audited
from nyala.wire.tls.refusals import Refusals
from nyala.wire.tls.requests import Find, TableAccess

log = logging.getLogger(__name__)
_CALL: ContextVar[CallUnderWay | None] = ContextVar("call", default=None)
"""The call that a task answers, for the page of calls."""


class GrpcServer:
    """Serves handlers on one address.

    Args:
        handlers: by method.
        address: host:port, loopback only unless there are credentials; port 0 picks a free one.
        limits: limits of messages and connections.
        metrics: metrics of calls; None: none.
        credentials: of the server, for TLS; callers then need a certificate, and the role of a method.
            None: no encryption and no checks.
        audit: audit log of the server; None: it has none.
        find: finds the tables of requests, for grants; None: the server has no tables.
    """

    def __init__(
        self,
        handlers: Handlers,
        address: str,
        limits: RpcLimits | None = None,
        metrics: RpcMetrics | None = None,
        credentials: Credentials | None = None,
        audit: Audit | None = None,
        find: Find | None = None,
    ) -> None:
        self._limits = limits or RpcLimits()
        self._access = TableAccess(credentials.grants, find) if credentials and find else None
        self._audit = audit
        self._metrics = metrics
        self._credentials = credentials
        calls = CallServer(handlers, self._limits.message_bytes, metrics)
        served = {**handlers, methods.CALL: calls.call}
        self._calls = Shares(
            "calls in flight", self._limits.user_calls_max, "user_calls_max", self._count_refused
        )
        self._refusals = Refusals(audit)
        self._streams = StreamServer(
            served, self._limits, metrics, credentials, self._access, self._refusals
        )
        self._handlers = {**served, methods.FIND_STREAMS: self._streams.find}
        if credentials is not None:
            policy.require_entries(m.path for m in self._handlers)
        self._wanted = address
        self._server: Any = None
        self._health = health.aio.HealthServicer()
        self.address = address
        """Listen address; with the actual port once started."""

    def _count_refused(self) -> None:
        if self._metrics is not None:
            self._metrics.refused("calls")

    async def start(self) -> str:
        """Bind and serve; return the address.

        Raises:
            Forbidden: not a loopback address, and no credentials.
            InvalidArgument: not an address, or its port is in use.
        """
        host, port = addresses.to_bind(self._wanted, secured=self._credentials is not None)
        self._check_free(host, port)
        server = grpc.aio.server(options=self._limits.server_options())
        for service, named in _by_service(self._handlers).items():
            table = {path.split("/")[1]: self._grpc_handler(m) for path, m in named.items()}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, table),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        services = [*_by_service(self._handlers), health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(services, server)
        try:
            bound = self._add_port(server, addresses.join(host, port))
        except RuntimeError as err:
            raise self._cannot_listen("the port is in use or not permitted") from err
        await self._streams.start(host)
        await server.start()
        self._server = server
        self.address = addresses.join(host, bound)
        await self.set_serving(True)
        return self.address

    def _add_port(self, server: Any, address: str) -> int:
        if self._credentials is None:
            return int(server.add_insecure_port(address))
        known = self._credentials
        version = known.version

        def current() -> Any:
            """Return the files if they have changed since the last handshake."""
            nonlocal version
            known.refresh()
            if known.version == version:
                return None
            version = known.version
            return _certificates(known)

        tls = grpc.dynamic_ssl_server_credentials(
            _certificates(known), current, require_client_authentication=True
        )
        return int(server.add_secure_port(address, tls))

    def _check_free(self, host: str, port: int) -> None:
        """Bind and free the port: gRPC prints lines of its own when it fails to bind one."""
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((host, port))
            except OSError as err:
                raise self._cannot_listen(err.strerror or str(err)) from err

    def _cannot_listen(self, why: str) -> InvalidArgument:
        return InvalidArgument(
            f"cannot listen on {self._wanted}: {why}; stop the process that uses the port, or choose another "
            "port"
        )

    async def set_serving(self, serving: bool) -> None:
        """Set the status that gRPC's health service reports to clients."""
        state = health_pb2.HealthCheckResponse
        value = state.SERVING if serving else state.NOT_SERVING
        for service in ["", *_by_service(self._handlers)]:
            await self._health.set(service, value)

    async def stop(self, grace_ms: int = 1000) -> None:
        """Reject new calls, wait up to `grace_ms` for those in flight, then cancel them."""
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await asyncio.gather(self._server.stop(grace_ms / 1000), self._streams.stop(grace_ms))
            self._server = None

    def _grpc_handler(self, method: Method) -> Any:
        call = _Call(
            method,
            self._handlers[method],
            self._limits,
            self._metrics,
            self._credentials,
            self._audit,
            self._access,
            self._calls,
            self._refusals,
        )
        if method.shape is Shape.UNARY:
            return grpc.unary_unary_rpc_method_handler(call.unary)
        if method.shape is Shape.SERVER_STREAM:
            return grpc.unary_stream_rpc_method_handler(call.server_stream)
        return grpc.stream_stream_rpc_method_handler(call.bidi)  # REQUEST_STREAM too


def _certificates(credentials: Credentials) -> Any:
    pem = credentials.pem
    return grpc.ssl_server_certificate_configuration(
        [(pem.key, pem.cert)], root_certificates=pem.ca
    )


def _by_service(handlers: Handlers) -> dict[str, dict[str, Method]]:
    services: dict[str, dict[str, Method]] = {}
    for method in handlers:
        services.setdefault(method.path.split("/")[0], {})[method.path] = method
    return services


def _caller_text() -> str:
    """Return the caller of this call for the audit log; empty: unknown."""
    caller = CALLER.get()
    return "" if caller is None else str(caller.principal)


class _Call:
    """gRPC adapter of one method: bytes in, bytes out, errors as statuses."""

    def __init__(
        self,
        method: Method,
        handler: Callable[..., Any],
        limits: RpcLimits,
        metrics: RpcMetrics | None,
        credentials: Credentials | None,
        audit: Audit | None,
        access: TableAccess | None,
        calls: Shares,
        refusals: Refusals,
    ) -> None:
        self._calls = calls
        self._refusals = refusals
        self._audit = audit
        self._access = access
        self._method = method
        self._handler = handler
        self._credentials = credentials
        self._limits = limits
        self._metrics = metrics

    async def unary(self, raw: bytes, context: Any) -> bytes:
        async def answer() -> bytes:
            handler = await self._permitted(context)
            request = self._method.decode_request(raw)
            with self._calls.hold(user_name()):
                if self._audit is None or self._method.path not in policy.AUDITED:
                    return self._encode(await cast("Awaitable[Any]", handler(request)))
                by = " at ".join(filter(None, (getattr(request, "peer_host", ""), _caller_text())))
                caller = f"{by} ({self._method.path.rpartition('/')[2]})"
                user = request.name if self._method is methods.LOGIN else ""
                counted = self._refusals.counted_for(caller, user)
                self._refusals.require_room(counted)
                try:
                    async with audited(self._audit, self._method.path, request):
                        encoded = self._encode(await cast("Awaitable[Any]", handler(request)))
                except (Forbidden, Unauthenticated, Throttled):
                    self._refusals.count(counted)
                    raise
                self._refusals.logged_in(caller, user)
                return encoded

        return cast("bytes", await self._guard(answer(), context, len(raw)))

    async def server_stream(self, raw: bytes, context: Any) -> None:
        async def answer() -> None:
            handler = await self._permitted(context)
            with self._calls.hold(user_name()):
                await self._send(handler(self._method.decode_request(raw)), context)

        await self._guard(answer(), context)

    async def bidi(self, raws: AsyncIterator[bytes], context: Any) -> None:
        async def requests() -> AsyncIterator[Any]:
            async for raw in raws:
                self._require_valid()
                yield self._method.decode_request(raw)

        async def answer() -> None:
            handler = await self._permitted(context)
            if self._method.shape is Shape.REQUEST_STREAM:
                handler = partial(responses_to, handler)
            with self._calls.hold(user_name()):
                await self._send(handler(requests()), context)

        await self._guard(answer(), context)

    async def _permitted(self, context: Any) -> Any:
        """As `_handler_for`; a refusal is in the audit log, if that can be written."""
        try:
            return self._handler_for(context)
        except (Unauthenticated, Forbidden) as err:
            peer = str(context.peer())
            await self._refusals.note(_caller_text() or peer, self._method.path, peer, err)
            raise

    def _handler_for(self, context: Any) -> Any:
        """Return the handler for the caller of a call.

        Raises:
            Unauthenticated, Forbidden: the caller may not call it.
        """
        known = self._credentials
        caller = None if known is None else identity_of_call(context, known)
        CALLER.set(caller)  # in the task of this call
        note_user(_CALL.get())

        def refused(path: str, err: NyalaError) -> None:
            if path not in policy.AUDITED:  # those have lines of their own
                self._refusals.begin(_caller_text(), path, str(context.peer()), err)

        return checked(self._method, self._handler, caller, self._access, refused)

    def _require_valid(self) -> None:
        """Check the caller of a stream at each message: it may outlive the caller's certificate.

        Raises:
            Unauthenticated: the certificate has expired, was revoked, or is of a retired authority.
        """
        caller = CALLER.get()
        if self._credentials is not None and caller is not None:
            self._credentials.check(caller)
            self._credentials.check_authority(caller)

    async def _send(self, responses: AsyncIterator[Any], context: Any) -> None:
        try:
            async for response in responses:
                self._require_valid()
                raw = self._encode(response)
                async with self._limits.reading():
                    await context.write(raw)
        finally:
            close = getattr(responses, "aclose", None)
            if close is not None:
                await close()

    def _encode(self, response: Any) -> bytes:
        raw = self._method.encode_response(response)
        limit = self._limits.message_bytes
        if len(raw) > limit:
            raise TooLarge(
                f"a response of {len(raw)} bytes is over the limit of {limit} bytes; request less data",
                {"limit": str(limit), "size": str(len(raw))},
            )
        return raw

    async def _guard(self, work: Awaitable[Any], context: Any, request_bytes: int = 0) -> Any:
        call = self._metrics.begin(self._method.path, request_bytes) if self._metrics else None
        _CALL.set(call)  # in the task of this call
        code = "CANCELLED"
        try:
            result = await work
            code = "OK"
            return result
        except asyncio.CancelledError:
            raise  # the client went away, or the server stops
        except Exception as err:  # the top of a call: every failure becomes a status of this call
            failure = status.as_nyala_error(err, self._method.path)
            code = failure.code
        finally:
            if self._metrics and call:
                self._metrics.end(call, code)
        await self._refuse(failure, context)

    async def _refuse(self, failure: NyalaError, context: Any) -> None:
        log.debug("%s from %s: %s", self._method.path, context.peer(), failure)
        await context.abort(*status.to_status(failure))
