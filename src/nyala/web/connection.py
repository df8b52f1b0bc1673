"""One HTTP connection of the web port: its caller by certificate, and limits of time for each request."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from nyala.common.errors import NyalaError
from nyala.security.identity import PeerIdentity
from nyala.wire.tls.access import whole_identity

REQUEST_S = 10.0
"""Time, in seconds, for a request to arrive completely, from the connection or from its first byte."""
RESPONSE_S = 60.0
"""Time, in seconds, for the answer to be made and read."""


class WebConnection(H11Protocol):
    """A connection that is closed if its client is too slow.

    The state of each request has `certified`: what the client's certificate says, None without one.
    """

    _limit: asyncio.TimerHandle | None = None
    _request_s = REQUEST_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, "certified": _certified(transport)}
        self._close_after(self._request_s)

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        waited = self._waits
        super().data_received(data)
        if self._waits and self._limit is None:
            self._close_after(self._request_s)
        elif waited and not self._waits:
            self._close_after(RESPONSE_S)

    def on_response_complete(self) -> None:
        """Wait for another request, as long as keep-alive allows."""
        self._stop_limit()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_limit()
        super().connection_lost(exc)

    @property
    def _waits(self) -> bool:
        """True while the next request has not arrived completely."""
        cycle: Any = self.cycle
        return cycle is None or cycle.more_body or cycle.response_complete

    def _close_after(self, seconds: float) -> None:
        self._stop_limit()
        self._limit = self.loop.call_later(seconds, self.transport.abort)

    def _stop_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


def _certified(transport: asyncio.BaseTransport) -> PeerIdentity | None:
    """Return what the verified certificate of a client says; None: it has none, or no user's."""
    try:
        return whole_identity(transport)
    except NyalaError:
        return None
