"""Server of the stream port: streams of nyala's own clients, without HTTP/2.

The same handlers serve this port and the public port. An error in the bytes of a connection closes only that
connection. Clients request the port, and the ticket required to use it, at the public port
(`StreamService.Find`). A connection takes further streams after one that has ended without error.
"""

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncIterator
from typing import Any

from nyala.common.errors import (
    Corrupt,
    Forbidden,
    InvalidArgument,
    NyalaError,
    TooLarge,
    Unavailable,
)
from nyala.env.clock import system_random
from nyala.env.request_stream import RequestHandler
from nyala.env.rpc import Handlers, Method, Shape
from nyala.security.credentials import Credentials
from nyala.security.identity import CALLER, PeerIdentity
from nyala.security.limits.shares import Shares
from nyala.security.principal import AccessRole
from nyala.wire import status
from nyala.wire.connection import Listener
from nyala.wire.flight_data import join, split
from nyala.wire.framing import Slabs
from nyala.wire.limits import RpcLimits
from nyala.wire.proto import reads_pb2 as pb
from nyala.wire.request_stream import RequestStreamServer
from nyala.wire.rpc_metrics import UNKNOWN_METHOD, CallUnderWay, RpcMetrics, note_user
from nyala.wire.stream_end import StreamEnd
from nyala.wire.stream_frames import TICKET_BYTES, StreamFrame, StreamFrameKind, read_open
from nyala.wire.tls.access import checked, identity_of_connection
from nyala.wire.tls.bounded_lines import BoundedLines
from nyala.wire.tls.refusals import Refusals
from nyala.wire.tls.requests import TableAccess

log = logging.getLogger(__name__)
log.addFilter(BoundedLines())

CONNECTIONS = 1024
OPEN_S = 5.0
"""Time, in seconds, after which a connection without an OPEN frame is closed."""
IDLE_S = 12.0
"""Time, in seconds, that a connection waits for its next stream; several times that of clients."""
AGE_S = 300.0
"""Age, in seconds, above which a connection takes no further stream; several times that of clients."""


class StreamServer:
    """Serves the streaming methods among some handlers.

    Args:
        handlers: by method.
        limits: limits of messages.
        metrics: metrics of calls; None: none.
        credentials: of the server, for TLS; None: no encryption.
        access: grants and tables of the server; None: it has none.
        refusals: notes refusals in the audit log; None: nothing is noted.
    """

    def __init__(
        self,
        handlers: Handlers,
        limits: RpcLimits,
        metrics: RpcMetrics | None,
        credentials: Credentials | None = None,
        access: TableAccess | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        self.access = access
        self.refusals = refusals or Refusals(None)
        self.methods = {m.path: m for m in handlers if m.shape is not Shape.UNARY}
        self.handlers = handlers
        self.limits = limits
        self.metrics = metrics
        self.ticket = system_random().randbytes(TICKET_BYTES)
        self.slabs = Slabs()
        self.connections: Listener[ServerStream] = Listener("stream port", CONNECTIONS, credentials)
        self.idle: dict[ServerStream, None] = {}
        self.shares = Shares(
            "connections to the stream port",
            limits.user_streams_max,
            "user_streams_max",
            self._count,
        )
        self.reuse = True  # until it stops
        self._port = 0

    async def start(self, host: str) -> None:
        """Bind a free port and serve."""
        self._port = await self.connections.listen(lambda: ServerStream(self), host, 0)

    async def find(self, _request: pb.FindStreamsRequest) -> pb.FindStreamsResponse:
        """Return the port and its ticket."""
        return pb.FindStreamsResponse(port=self._port, ticket=self.ticket, reuse=self.reuse)

    async def stop(self, grace_ms: int) -> None:
        """Refuse new streams, let those in flight end within `grace_ms`, then cancel them."""
        stops, self.reuse = Unavailable("the server stops"), False
        for idle in list(self.idle):
            idle.fail(stops)
        await self.connections.close(lambda c: c.fail(stops), grace_ms)

    def admit(self, connection: "ServerStream", transport: asyncio.BaseTransport) -> bool:
        """Count a new connection, in the place of the oldest idle one if needed; False: there are too many.

        Args:
            connection: its protocol.
            transport: its transport.
        """
        if self.connections.full and self.idle:
            oldest = next(iter(self.idle))
            oldest.fail(Unavailable("the server needs the place of this idle connection"))
            self.idle.pop(oldest, None)
            self.connections.remove(oldest)
        return self.connections.admit(connection, transport)

    def enter_share(self, stream: "ServerStream", transport: asyncio.BaseTransport) -> None:
        """Count a connection for its user, in the place of an idle one of the same user if needed.

        Args:
            stream: the connection.
            transport: its transport.

        Raises:
            Throttled: the user has its share of connections.
            Unauthenticated: the certificate is no user's or server's, or was revoked.
        """
        caller = _caller(transport, self.connections.credentials)
        if caller is None or caller.principal.role is AccessRole.SERVER:
            return
        user = caller.principal.name
        idle = [s for s in self.idle if s.user == user]
        if idle and self.shares.used(user) >= self.limits.user_streams_max:
            idle[0].fail(Unavailable("its user needs the place of this idle connection"))
            self.leave_share(idle[0])
            self.idle.pop(idle[0], None)
        self.shares.take(user)
        stream.user = user

    def leave_share(self, stream: "ServerStream") -> None:
        """Count a connection for its user no more."""
        if stream.user:
            self.shares.release(stream.user)
            stream.user = ""

    def handler(
        self, method: Method, caller: PeerIdentity | None, transport: asyncio.BaseTransport | None
    ) -> Any:
        """Return the handler of a method for a caller; refusals are in the audit log.

        Args:
            method: the method.
            caller: None: the server has no credentials.
            transport: of its connection.

        Raises:
            Forbidden: the caller may not call it.
        """
        if caller is None:
            return self.handlers[method]
        who = str(caller.principal)
        peer = "" if transport is None else str(transport.get_extra_info("peername"))

        def refused(path: str, err: NyalaError) -> None:
            self.refusals.begin(who, path, peer, err)

        try:
            return checked(method, self.handlers[method], caller, self.access, refused)
        except Forbidden as err:
            refused(method.path, err)
            raise

    def begun(self, path: str) -> CallUnderWay | None:
        """Return the record of a call that begins; callers choose paths, so other paths have one name."""
        name = path if path in self.methods else UNKNOWN_METHOD
        return self.metrics.begin(name) if self.metrics else None

    def _count(self) -> None:
        if self.metrics is not None:
            self.metrics.refused("streams")


class ServerStream(StreamEnd):
    """One accepted connection: an OPEN, then the frames of one stream; perhaps again.

    Attributes:
        user: whose share of connections it is counted in; empty: in none.
    """

    def __init__(self, server: StreamServer) -> None:
        super().__init__(server.limits.message_bytes, server.slabs)
        self.user = ""
        self._server = server
        self._task: asyncio.Task[None] | None = None
        self._request_server: RequestStreamServer | None = None
        self._path = ""
        self._call: CallUnderWay | None = None
        self._open_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept, unless `CONNECTIONS` are open."""
        super().connection_made(transport)
        if not self._server.admit(self, transport):
            self.fail(
                Unavailable(
                    f"this server has {CONNECTIONS} open streams, which is its limit; retry when some "
                    "have ended, or read with fewer concurrent clients"
                )
            )
            return
        try:
            self._server.enter_share(self, transport)
        except NyalaError as err:
            self._send_end(err)
            return
        self._await_open(OPEN_S)

    def _await_open(self, seconds: float) -> None:
        """Close the connection when no OPEN arrives for a time."""
        silent = Unavailable(f"no stream was opened on the connection within {seconds:g} s")
        self._open_timer = asyncio.get_running_loop().call_later(seconds, self.fail, silent)

    def _await_next(self) -> None:
        """Send END, and wait for the next stream."""
        self._count("OK")
        self._task = None
        self._server.idle[self] = None
        self.write(StreamFrameKind.END, b"")
        self._await_open(IDLE_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the handler: the client has disconnected."""
        super().connection_lost(exc)
        self._server.leave_share(self)
        self._server.idle.pop(self, None)
        if self._open_timer is not None:
            self._open_timer.cancel()
        if self._task is not None:
            self._task.cancel()
        elif self._request_server is not None:
            self._request_server.lost()
            self._count("CANCELLED")
        self._server.connections.remove(self)

    def on_frame(self, frame: StreamFrame) -> None:
        """Start the handler at the first frame; queue the others for it, or pass them to the answerer."""
        if self._request_server is not None:
            self._request_server.take(frame)
        elif self._task is not None:
            super().on_frame(frame)
        elif frame.kind is not StreamFrameKind.OPEN:
            raise Corrupt(f"the first frame of a stream is {frame.kind.name}; it must be OPEN")
        else:
            self._begin(*read_open(frame.message))

    def _begin(self, ticket: bytes, path: str) -> None:
        if self._open_timer is not None:
            self._open_timer.cancel()
        self._server.idle.pop(self, None)
        self._path, method = path, self._server.methods.get(path)
        self._call = self._server.begun(path)
        if (
            ticket == self._server.ticket
            and method is not None
            and method.shape is Shape.REQUEST_STREAM
        ):
            try:
                caller = _caller(self._transport, self._server.connections.credentials)
                handler = _called_by(caller, self._server.handler(method, caller, self._transport))
            except NyalaError as err:
                self._send_end(err)
                return
            self._request_server = RequestStreamServer(self, method, handler, self._send_end)
            return
        work = self._serve(ticket, method)
        self._task = asyncio.get_running_loop().create_task(work, name=f"stream {path[:100]}")

    def resume_writing(self) -> None:
        """Go on with requests that waited until the client took the responses."""
        super().resume_writing()
        if self._request_server is not None:
            self._request_server.proceed()

    def _send_end(self, failure: NyalaError | None) -> None:
        """Send END or the error to the client."""
        self._count("OK" if failure is None else failure.code)
        if failure is None:
            self.write(StreamFrameKind.END, b"")
        else:
            self.write(StreamFrameKind.ERROR, status.to_proto(failure).SerializeToString())
        self.finish()

    def _count(self, code: str) -> None:
        if self._server.metrics is not None and self._call is not None:
            self._server.metrics.end(self._call, code)
        self._call = None

    def on_invalid_frame(self, err: NyalaError) -> None:
        """Send the error of an invalid frame to the client, and close."""
        log.warning("stream port: a connection was closed: %s", err)
        if err.details.get("why") == "oversized":
            err = TooLarge(f"{err.message}; send or ask for smaller batches", err.details)
        self.failure = self.failure or err
        if self._request_server is not None:
            self._send_end(err)
        elif self._task is None:
            self.fail(err)
        else:
            self._wake()  # the handler raises it, and the client receives it

    async def _serve(self, ticket: bytes, method: Method | None) -> None:
        failure: NyalaError | None = None
        try:
            if ticket != self._server.ticket:
                raise Unavailable(
                    "the stream's ticket was issued by another server process: this server has restarted, or "
                    "uses the port of another one; request its stream port again"
                )
            if method is None:
                raise InvalidArgument(
                    f"this server does not have the method {self._path}; upgrade it, or use an older client"
                )
            await self._answer(method, self._path)
        except asyncio.CancelledError:
            self._count("CANCELLED")
            raise
        except Exception as err:  # the top of a stream: its client receives every failure
            failure = status.as_nyala_error(err, self._path)
        complete = failure is None and method is not None and method.shape is Shape.SERVER_STREAM
        if complete and self._server.reuse and self.idle_within(AGE_S):
            self._await_next()
        else:
            self._send_end(failure)

    async def _answer(self, method: Method, path: str) -> None:
        caller = _caller(self._transport, self._server.connections.credentials)
        CALLER.set(caller)  # in the task of this stream
        note_user(self._call)
        handler = self._server.handler(method, caller, self._transport)
        requests = self._requests(method)
        if method.shape is Shape.BIDI:
            responses = handler(requests)
        else:
            try:
                responses = handler(await anext(requests))
            except StopAsyncIteration:
                raise InvalidArgument(
                    f"the stream of {path} ended before its request; send one message first"
                ) from None
        limit = self.max_bytes
        async with contextlib.aclosing(responses):
            async for response in responses:
                whole, body = split(response)
                message = method.encode_response(whole)
                size = len(message) + (0 if body is None else len(body))
                if size > limit:
                    raise TooLarge(
                        f"a response of {size} bytes exceeds the limit of {limit} bytes; request less",
                        {"limit": str(limit), "size": str(size)},
                    )
                await self.send(StreamFrameKind.MESSAGE, message, None if body is None else (body,))

    async def _requests(self, method: Method) -> AsyncIterator[Any]:
        while (frame := await self.receive()).kind is StreamFrameKind.MESSAGE:
            yield join(method.decode_request(frame.message), frame.body)
        if frame.kind is not StreamFrameKind.END:
            raise Corrupt(
                f"a frame {frame.kind.name} follows a stream's messages, and only END may"
            )


def _called_by(caller: PeerIdentity | None, handler: RequestHandler) -> RequestHandler:
    """Return a handler of requests that runs, as do the tasks that it begins, with its caller in `CALLER`."""
    if caller is None:
        return handler
    context = contextvars.copy_context()
    context.run(CALLER.set, caller)
    return lambda request, answer: context.run(handler, request, answer)


def _caller(
    transport: asyncio.BaseTransport | None, credentials: Credentials | None
) -> PeerIdentity | None:
    """Return the other end of a connection; None: the server has no credentials.

    Raises:
        Unauthenticated: its certificate is no user's or server's, or was revoked.
        Unavailable: the connection was lost.
    """
    if credentials is None:
        return None
    if transport is None:
        raise Unavailable("the connection was lost")
    return identity_of_connection(transport, credentials)
