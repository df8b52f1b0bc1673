"""RPC interface between processes, implemented by gRPC and by the simulator.

A `Method` has its name, shape and codecs, so that both transports send the same bytes. Handlers are async
functions from message to message; `wire/server.py` or the simulated network calls them. An error is sent as
(code, message, details) and raised again as its own class.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from nyala.env.request_stream import OnResponse, RequestHandler, RequestStream


class Shape(Enum):
    """Number of messages in each direction."""

    UNARY = "unary"  # one request, one response
    SERVER_STREAM = "server_stream"  # one request, many responses
    BIDI = "bidi"  # many requests, many responses
    REQUEST_STREAM = (
        "request_stream"  # as BIDI, with one response per request (env/request_stream.py)
    )


@dataclass(frozen=True, slots=True)
class Method:
    """One remote method. `path` is `package.Service/Method`, gRPC's without the leading slash."""

    path: str
    shape: Shape
    encode_request: Callable[[Any], bytes]
    decode_request: Callable[[bytes], Any]
    encode_response: Callable[[Any], bytes]
    decode_response: Callable[[bytes], Any]


UnaryHandler = Callable[[Any], Awaitable[Any]]
StreamHandler = Callable[[Any], AsyncIterator[Any]]
Handlers = Mapping[Method, UnaryHandler | StreamHandler | RequestHandler]
"""UNARY: `async f(request) -> response`. SERVER_STREAM: `f(request) -> async iterator`.
BIDI: `f(async iterator of requests) -> async iterator of responses`. REQUEST_STREAM: `f(request, answer)`."""


class Rpc(Protocol):
    """The client side."""

    async def call(self, address: str, method: Method, request: Any, *, timeout_ms: int) -> Any:
        """Send one request to a UNARY method and return its response.

        Args:
            address: host:port.
            method: one of `wire.methods`.
            request: message of the method.
            timeout_ms: deadline, from now.

        Raises:
            NyalaError: as the handler raised it; `Unavailable` when the address cannot be reached;
                `TimedOut` without a response in time (the outcome is then unknown).
        """
        ...

    def stream(
        self, address: str, method: Method, request: Any, *, timeout_ms: int | None = None
    ) -> AsyncIterator[Any]:
        """Open a stream.

        Args:
            address: host:port of a public port.
            method: a SERVER_STREAM method (`request` is one message), or a BIDI or REQUEST_STREAM method
                (`request` is an async iterator of messages).
            request: see `method`.
            timeout_ms: deadline of the whole stream, from now; None: none.

        Raises:
            NyalaError: from the iterator, as for `call`.
        """
        ...

    def request_stream(
        self, address: str, method: Method, on_response: OnResponse
    ) -> RequestStream:
        """Open a stream of requests to a REQUEST_STREAM method; it connects in the background.

        Args:
            address: host:port.
            method: one of `wire.methods`.
            on_response: called with each response, or with the error that ended the stream.
        """
        ...
