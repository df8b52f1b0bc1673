"""Handlers that answer Unavailable until the server has started.

The public port is bound before the data directory is open, so that early callers get a response.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from nyala.common.errors import Unavailable
from nyala.env.rpc import Handlers, Method, Shape


class StartupGate:
    """Forwards calls once it is open. Used on the event loop only.

    Args:
        methods: that the server will handle.
    """

    def __init__(self, methods: Sequence[Method]) -> None:
        self._methods = tuple(methods)
        self._handlers: Mapping[Method, Any] | None = None

    def open(self, handlers: Handlers) -> None:
        """Forward calls to these handlers from now on."""
        missing = [m.path for m in self._methods if m not in handlers]
        assert not missing, f"nothing answers {missing}"
        self._handlers = handlers

    def close(self) -> None:
        """Answer Unavailable again."""
        self._handlers = None

    def handlers(self) -> Handlers:
        """Return the handlers to bind."""
        make = {Shape.UNARY: self._unary, Shape.REQUEST_STREAM: self._request_stream}
        return {m: make.get(m.shape, self._stream)(m) for m in self._methods}

    def _handler(self, method: Method) -> Any:
        if self._handlers is None:
            raise Unavailable("this tablet server is starting or stopping; retry")
        return self._handlers[method]

    def _unary(self, method: Method) -> Any:
        async def call(request: Any) -> Any:
            return await self._handler(method)(request)

        return call

    def _request_stream(self, method: Method) -> Any:
        def ask(request: Any, answer: Callable[[Any], None]) -> None:
            self._handler(method)(request, answer)

        return ask

    def _stream(self, method: Method) -> Any:
        async def stream(request: Any) -> AsyncIterator[Any]:
            async for item in self._handler(method)(request):
                yield item

        return stream
