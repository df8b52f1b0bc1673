"""Hybrid time: 64 bits, microseconds since the epoch << 12 | logical counter.

Arithmetic only; the clock is in `env/clock.py`.
"""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from operator import index

from nyala.common.errors import InvalidArgument

LOGICAL_BITS = 12
LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
MAX_HYBRID_TIME = (1 << 63) - 1
"""Maximum timestamp; an int64, for Arrow, Spark and SQL."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNIX_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
"""Units in which other systems count time since 1970, and how many of each a second has."""
_UNIX_SECONDS = range(10**9, 4 * 10**9)
"""Unix times of the years 2001 to 2096; as a hybrid time, such a number in any unit lies before 2001."""


def from_micros(micros: int, logical: int = 0) -> int:
    """Return the hybrid time of a physical time in microseconds since the epoch."""
    return micros << LOGICAL_BITS | logical


def to_micros(stamp: int) -> int:
    """Return the physical part of a stamp, in microseconds since the epoch."""
    return stamp >> LOGICAL_BITS


def to_datetime(stamp: int) -> datetime:
    """Return the physical part of a stamp as a time in UTC."""
    return _EPOCH + timedelta(microseconds=to_micros(stamp))


def as_stamp(value: int | datetime) -> int:
    """Return the hybrid time of a user's value.

    Args:
        value: a hybrid time, or an aware datetime, which stands for the end of its microsecond.

    Raises:
        InvalidArgument: a naive datetime, a negative number, one above the maximum, or a Unix time.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArgument(
                f"the datetime {value.isoformat()} has no time zone, so its moment is unknown; "
                "pass an aware one, for instance datetime.now(timezone.utc)"
            )
        micros = (value - _EPOCH) // timedelta(microseconds=1)
        return _in_range(from_micros(micros, LOGICAL_MASK))
    if not isinstance(value, bool):
        with suppress(TypeError):
            value = index(value)  # of a frame's column of times, for instance numpy.int64
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(
            f"a timestamp is an int hybrid time or an aware datetime, not {type(value).__name__}; pass "
            "client.now(), a write's .timestamp, or datetime.now(timezone.utc)"
        )
    for unit, per_second in _UNIX_UNITS.items():
        if value // per_second in _UNIX_SECONDS:
            raise InvalidArgument(
                f"the timestamp {value} is a number of {unit} since 1970; as a hybrid time, which counts "
                f"1/{1 << LOGICAL_BITS} of microseconds, it would be a time of {to_datetime(value).year}; "
                "pass client.now(), a write's .timestamp, or an aware datetime, for instance "
                "datetime.fromtimestamp(seconds, timezone.utc)"
            )
    return _in_range(value)


def _in_range(value: int) -> int:
    if not 0 <= value <= MAX_HYBRID_TIME:
        raise InvalidArgument(
            f"the timestamp {value} is outside 0..{MAX_HYBRID_TIME}, the years 1970 to 2041; pass one of "
            "these"
        )
    return value


def stamp_of_text(text: str) -> int:
    """Return the hybrid time of a text: a hybrid time in digits, or an ISO time with its zone.

    Args:
        text: for instance "7355698543258968064", or "2026-01-31T12:00:00+00:00".

    Raises:
        InvalidArgument: it is neither.
    """
    try:
        if text.isascii() and text.isdecimal():
            return as_stamp(int(text))
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{text[:80]!r} is no time: write a hybrid time, the number that client.now() gives, or a time "
            "with its zone, such as 2026-01-31T12:00:00+00:00"
        ) from None
    if time.tzinfo is None:
        raise InvalidArgument(
            f"the time {text[:80]!r} has no zone, so its moment is unknown; write it with the offset of its "
            f"zone, in UTC {time.isoformat()}+00:00"
        )
    return as_stamp(time)
