"""Times as the commands of tokens and revocations show them."""

from datetime import UTC, datetime


def utc(time_us: int) -> str:
    """Return a time, in microseconds since the epoch, as text in UTC."""
    return f"{datetime.fromtimestamp(time_us / 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
