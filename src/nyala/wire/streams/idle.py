"""Connections of a client to stream ports whose streams have ended, for its next streams.

A TLS connection costs both ends some milliseconds, much more than a small scan. A plain one costs less, but
those of a small scan of eight tablets take a seventh of its CPU time. A server that takes further streams on
a connection says so (`FindStreamsResponse.reuse`), and waits longer than its clients for the next.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from nyala.common.errors import Unavailable
from nyala.wire.stream_end import StreamEnd

KEPT = 8
"""Number of connections kept for each server."""
IDLE_S = 3.0
"""Time, in seconds, that a connection is kept without a stream."""
AGE_S = 60.0
"""Age, in seconds, above which a connection is not kept, so that renewed certificates come into use."""


@dataclass(frozen=True, slots=True)
class _Idle:
    """A connection, the ticket of its server, and the timer that closes it."""

    end: StreamEnd
    ticket: bytes
    timer: asyncio.TimerHandle


class IdleConnections:
    """Connections without a stream, by the public address of their server. On the loop only."""

    def __init__(self) -> None:
        self._kept: dict[str, deque[_Idle]] = {}

    def put(self, address: str, ticket: bytes, end: StreamEnd) -> None:
        """Keep a connection whose stream has ended; close it if it is not usable, or enough are kept.

        Args:
            address: public address of the server.
            ticket: of the server.
            end: the connection, of which the END of the server was the last frame.
        """
        kept = self._kept.setdefault(address, deque())
        if len(kept) >= KEPT or not end.idle_within(AGE_S):
            _close(end)
        else:
            timer = asyncio.get_running_loop().call_later(IDLE_S, self._close_oldest, address)
            kept.append(_Idle(end, ticket, timer))
        if not kept:
            del self._kept[address]

    def take(self, address: str, ticket: bytes) -> StreamEnd | None:
        """Return the connection that was used last; None: there is none.

        Args:
            address: public address of the server.
            ticket: of the server, as it is known now; connections to an earlier process are closed.
        """
        kept = self._kept.get(address, deque())
        while kept:
            last = kept.pop()
            last.timer.cancel()
            if not kept:
                del self._kept[address]
            if last.ticket == ticket and last.end.idle_within(AGE_S):
                return last.end
            _close(last.end)
        return None

    def close(self) -> None:
        """Close all of them."""
        for kept in self._kept.values():
            for idle in kept:
                idle.timer.cancel()
                _close(idle.end)
        self._kept.clear()

    def _close_oldest(self, address: str) -> None:
        """Close the connection that was put first: its timer is the first to fire."""
        kept = self._kept[address]
        _close(kept.popleft().end)
        if not kept:
            del self._kept[address]


def _close(end: StreamEnd) -> None:
    end.fail(Unavailable("the connection was closed by this side"))
    end.discard()
