"""Metrics of a server's RPCs, timed by the clock of `env`; its calls under way, slow and recent ones."""

from collections import deque
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from nyala.env.clock import Clock
from nyala.security.identity import user_name

_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

KEPT = 100
"""Number of recent calls that are kept, and of slow ones."""
UNKNOWN_METHOD = "unknown"
"""Name under which calls of methods that the server does not have are counted."""
SLOW_US = 500_000
"""Duration from which on a call is slow, in microseconds."""


class EndedCall(NamedTuple):
    """One call that has ended. It has nothing of the content of the request.

    Attributes:
        method: its path.
        code: OK, CANCELLED or the code of an error.
        user: name of the caller; empty: a server, or unknown.
        start_us: monotonic time at which it began.
        duration_us: time until it ended, streams included.
        request_bytes: size of the request; 0: a stream.
    """

    method: str
    code: str
    user: str
    start_us: int
    duration_us: int
    request_bytes: int


@dataclass(slots=True, eq=False)
class CallUnderWay:
    """One call that has begun and has not ended.

    Attributes:
        method: its path.
        user: name of the caller; empty: a server, or not known yet.
        start_us: monotonic time at which it began.
        request_bytes: size of the request; 0: a stream.
    """

    method: str
    user: str
    start_us: int
    request_bytes: int


def note_user(call: CallUnderWay | None) -> None:
    """Record the user of a call under way, once this task knows its caller; None: there are no metrics."""
    if call is not None:
        call.user = user_name()


class RpcMetrics:
    """Counters of the public port.

    Args:
        clock: measures the duration of calls.
        registry: exposed by `/metrics`; one RpcMetrics per registry.
    """

    def __init__(self, clock: Clock, registry: CollectorRegistry) -> None:
        self._clock = clock
        self._recent: deque[EndedCall] = deque(maxlen=KEPT)
        self._slow: deque[EndedCall] = deque(maxlen=KEPT)
        self._under_way: dict[CallUnderWay, None] = {}
        self._calls = Counter(
            "nyala_rpc_calls", "Calls ended, by method and error code.", ["method", "code"],
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "nyala_rpc_seconds", "How long calls took, streams included.", ["method"],
            registry=registry, buckets=_BUCKETS_S,
        )  # fmt: skip
        # Labels are looked up once: each look-up of the library takes a lock and makes a tuple of strings.
        self._count = cache(lambda method, code: self._calls.labels(method, code).inc)
        self._observe = cache(lambda method: self._seconds.labels(method).observe)
        self._active = Gauge("nyala_rpc_active", "Calls in flight.", registry=registry)
        self._refused = Counter(
            "nyala_rpc_user_refusals", "Calls and streams refused since a user has its share.", ["what"],
            registry=registry,
        )  # fmt: skip

    def refused(self, what: str) -> None:
        """Count a refusal of a caller that has its share of a resource."""
        self._refused.labels(what).inc()

    def begin(self, method: str, request_bytes: int = 0) -> CallUnderWay:
        """Record the start of a call, which `end` takes.

        Args:
            method: one of this server's, or `UNKNOWN_METHOD`; never a path as the caller sent it, because the
                counters of each one are kept.
            request_bytes: size of its request; 0: a stream.
        """
        self._active.inc()
        call = CallUnderWay(method, user_name(), self._clock.monotonic_us(), request_bytes)
        self._under_way[call] = None
        return call

    def end(self, call: CallUnderWay, code: str) -> None:
        """Record the end of a call.

        Args:
            call: what `begin` returned.
            code: OK, CANCELLED or the code of an error.
        """
        del self._under_way[call]
        method, took_us = call.method, self._clock.monotonic_us() - call.start_us
        user = user_name() or call.user
        ended = EndedCall(method, code, user, call.start_us, took_us, call.request_bytes)
        self._recent.append(ended)
        if took_us >= SLOW_US:
            self._slow.append(ended)
        self._active.dec()
        self._count(method, code)()
        self._observe(method)(took_us / 1e6)

    def under_way(self) -> tuple[list[CallUnderWay], int]:
        """Return the calls under way, the oldest first, at most `KEPT`, and the number of the others."""
        return [*islice(self._under_way, KEPT)], max(0, len(self._under_way) - KEPT)

    def ended(self) -> tuple[list[EndedCall], list[EndedCall], int]:
        """Return the recent calls and the slow ones, the latest first, and the monotonic time now."""
        return [*reversed(self._recent)], [*reversed(self._slow)], self._clock.monotonic_us()
