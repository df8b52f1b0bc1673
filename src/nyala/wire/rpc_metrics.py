"""Metrics of a server's RPCs, timed by the clock of `env`."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from nyala.env.clock import Clock

_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class RpcMetrics:
    """Counters of the public port.

    Args:
        clock: measures the duration of calls.
        registry: exposed by `/metrics`; one RpcMetrics per registry.
    """

    def __init__(self, clock: Clock, registry: CollectorRegistry) -> None:
        self._clock = clock
        self._calls = Counter(
            "nyala_rpc_calls", "Calls ended, by method and error code.", ["method", "code"],
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "nyala_rpc_seconds", "How long calls took, streams included.", ["method"],
            registry=registry, buckets=_BUCKETS_S,
        )  # fmt: skip
        self._active = Gauge("nyala_rpc_active", "Calls in flight.", registry=registry)
        self._refused = Counter(
            "nyala_rpc_user_refusals", "Calls and streams refused since a user has its share.", ["what"],
            registry=registry,
        )  # fmt: skip

    def refused(self, what: str) -> None:
        """Count a refusal of a caller that has its share of a resource."""
        self._refused.labels(what).inc()

    def begin(self) -> int:
        """Record the start of a call; return its start in monotonic microseconds."""
        self._active.inc()
        return self._clock.monotonic_us()

    def end(self, method: str, code: str, start_us: int) -> None:
        """Record the end of a call.

        Args:
            method: one of `wire.methods`.
            code: OK, CANCELLED or the code of an error.
            start_us: monotonic time at which the call began.
        """
        self._active.dec()
        self._calls.labels(method, code).inc()
        self._seconds.labels(method).observe((self._clock.monotonic_us() - start_us) / 1e6)
