"""Calls of the commands of tokens and revocations to the leader master."""

from typing import Any

TIMEOUT_MS = 15_000


def call_leader(masters: str, method: Any, request: Any) -> Any:
    """Return the leader master's answer.

    Args:
        masters: addresses of masters; empty: those of the environment or the local cluster.
        method: method of `AccessService`.
        request: message of the method.
    """
    from nyala.client.connection import Connection
    from nyala.client.core import ClientOptions

    connection = Connection(masters, ClientOptions(timeout_ms=TIMEOUT_MS))
    try:
        call = connection.core.masters.call(method, request, timeout_ms=TIMEOUT_MS)
        return connection.run(call)
    finally:
        connection.close()


def utc(time_us: int) -> str:
    """Return a time, in microseconds since the epoch, as text in UTC."""
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(time_us / 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
