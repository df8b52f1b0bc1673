"""Unary calls over the stream port, both ends: `StreamService.Call`.

One message in each direction, without gRPC: for calls that are short and frequent (`methods.STREAMED`). They
are served by the handlers of the public port, with the caller in `CALLER`. Others are not served: they may
need the audit log and the filters of the public port. Used on the loop only.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from nyala.common.errors import InvalidArgument, NyalaError, TimedOut, TooLarge, Unavailable
from nyala.env.request_stream import MAX_IN_FLIGHT, OnResponse, RequestStream
from nyala.env.rpc import Handlers, Method
from nyala.wire import methods, status
from nyala.wire.proto import reads_pb2 as pb

if TYPE_CHECKING:  # a client has no metrics, and their library takes long to load
    from nyala.wire.rpc_metrics import RpcMetrics

MAX_UNANSWERED_BYTES = 4 << 20
"""Bytes of calls without a response from which a stream takes no more."""
FRAMING_BYTES = 4096
"""Upper limit of the bytes that a call adds to its message."""


class CallServer:
    """Answers calls.

    Args:
        handlers: by method; those of `methods.STREAMED` are served.
        max_bytes: largest response.
        metrics: metrics of calls; None: none.
    """

    def __init__(self, handlers: Handlers, max_bytes: int, metrics: "RpcMetrics | None") -> None:
        self._methods = {m.path: m for m in handlers if m in methods.STREAMED}
        self._handlers = handlers
        self._max_bytes = max_bytes - FRAMING_BYTES
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self, request: pb.CallRequest, answer: Callable[[pb.CallResponse], None]) -> None:
        """Start the handler of one call; `answer` gets its response, or its error."""
        work = self._answer(request, answer)
        task = asyncio.get_running_loop().create_task(work, name=f"call {request.method}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(
        self, request: pb.CallRequest, answer: Callable[[pb.CallResponse], None]
    ) -> None:
        response = pb.CallResponse(request=request.request)
        method = self._methods.get(request.method)
        if method is None:
            unknown = InvalidArgument(
                f"this server has no calls over streams of the method {request.method[:100]}; upgrade it, "
                "use an older client, or call the method on the public port"
            )
            response.error.CopyFrom(status.to_proto(unknown))
        else:
            await self._handle(method, request.message, response)
        answer(response)

    async def _handle(self, method: Method, message: bytes, response: pb.CallResponse) -> None:
        call = self._metrics.begin(method.path, len(message)) if self._metrics else None
        code = "CANCELLED"
        try:
            handler = cast("Callable[[Any], Awaitable[Any]]", self._handlers[method])
            raw = method.encode_response(await handler(method.decode_request(message)))
            if len(raw) > self._max_bytes:
                raise TooLarge(
                    f"a response of {len(raw)} bytes is over the limit of {self._max_bytes} bytes; request "
                    "less data",
                    {"limit": str(self._max_bytes), "size": str(len(raw))},
                )
            response.message = raw
            code = "OK"
        except Exception as err:  # the top of a call: its client receives every failure
            failure = status.as_nyala_error(err, method.path)
            response.error.CopyFrom(status.to_proto(failure))
            code = failure.code
        finally:
            if self._metrics and call:
                self._metrics.end(call, code)


class CallClient:
    """Calls of one process: one stream per server, and another when all calls of the first are unanswered.

    Args:
        open_stream: opens a stream of calls to an address.
        max_bytes: largest request.
    """

    def __init__(
        self, open_stream: Callable[[str, OnResponse], RequestStream], max_bytes: int
    ) -> None:
        self._open_stream = open_stream
        self._max_bytes = max_bytes - FRAMING_BYTES
        self._streams: dict[str, list[_CallStream]] = {}

    async def call(self, address: str, method: Method, request: Any, timeout_ms: int) -> Any:
        """Send one request and return its response; see `env.rpc.Rpc.call`.

        Args:
            address: host:port of a public port.
            method: a unary method.
            request: message of the method.
            timeout_ms: deadline, from now.
        """
        raw = method.encode_request(request)
        if len(raw) > self._max_bytes:
            raise TooLarge(
                f"a request of {len(raw)} bytes to {address} is over the limit of {self._max_bytes} bytes; "
                "send smaller batches",
                {"limit": str(self._max_bytes), "size": str(len(raw))},
            )
        stream = self._stream(address)
        answer = stream.send(method.path, raw)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                response = await answer
        except TimeoutError:
            raise TimedOut(
                f"no response from {address} to {method.path} before the deadline"
            ) from None
        finally:
            stream.end_if_useless()
        if response.HasField("error"):
            raise status.from_proto(response.error)
        return method.decode_response(response.message)

    def _stream(self, address: str) -> "_CallStream":
        """Return a stream that takes a call, opening one if needed."""
        if address not in self._streams:  # addresses of servers that ended leave the mapping
            alive = {a: [s for s in found if not s.broken] for a, found in self._streams.items()}
            self._streams = {a: found for a, found in alive.items() if found}
        known = [s for s in self._streams.get(address, ()) if not s.broken]
        for stream in known:
            if not stream.full:
                break
        else:
            stream = _CallStream(address, self._open_stream)
            known.append(stream)
        self._streams[address] = known
        return stream


class _CallStream:
    """One stream to one server.

    Attributes:
        broken: it takes no more calls.
    """

    def __init__(
        self, address: str, open_stream: Callable[[str, OnResponse], RequestStream]
    ) -> None:
        self._address = address
        self._answers: dict[int, tuple[asyncio.Future[pb.CallResponse], int]] = {}  # with the bytes
        self._requests = self._unanswered_bytes = 0
        self._answered = self.broken = False
        self._stream = open_stream(address, self._on_response)

    @property
    def full(self) -> bool:
        """True if so many calls, or bytes of calls, have no response; also those that nobody waits for."""
        return len(self._answers) >= MAX_IN_FLIGHT or self._unanswered_bytes >= MAX_UNANSWERED_BYTES

    def end_if_useless(self) -> None:
        """End the stream if it takes no more calls, and nobody waits for a response.

        Otherwise the calls to a silent server would stay for as long as its connection.
        """
        if self.full and all(answer.done() for answer, _ in self._answers.values()):
            self.broken = True
            self._stream.abandon()

    def send(self, path: str, message: bytes) -> "asyncio.Future[pb.CallResponse]":
        """Send a call; return its response when there is one.

        Args:
            path: path of the method.
            message: its encoded request.
        """
        self._requests += 1
        answer: asyncio.Future[pb.CallResponse] = asyncio.get_running_loop().create_future()
        self._answers[self._requests] = answer, len(message)
        self._unanswered_bytes += len(message)
        self._stream.send(pb.CallRequest(request=self._requests, method=path, message=message))
        return answer

    def _on_response(self, response: Any) -> None:
        if isinstance(response, NyalaError):
            self.broken = True
            for answer, _ in self._answers.values():
                if not answer.done():
                    answer.set_exception(self._error_for(response))
            self._answers.clear()
            return
        self._answered = True
        waiting, size = self._answers.pop(response.request, (None, 0))
        self._unanswered_bytes -= size
        if waiting is not None and not waiting.done():
            waiting.set_result(response)

    def _error_for(self, ended: NyalaError) -> NyalaError:
        """Return the error of a call that has no response when its stream ends.

        A server that refuses the stream has handled none of its calls. Otherwise it may have taken effect.
        """
        refused = isinstance(ended, InvalidArgument | Unavailable) and not self._answered
        if refused and ended.answered:
            return ended.another()
        return Unavailable(f"{self._address}: {ended.message}", ended.details)
