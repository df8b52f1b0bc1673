"""Checks of the arguments of calls, before a request is sent."""

import math
from collections.abc import Iterable
from typing import Any

from nyala.common.errors import InvalidArgument
from nyala.common.schema import utf8_bytes

MAX_TIMEOUT_MS = (1 << 31) - 1
"""Longest timeout of a call, in milliseconds: 24 days."""


def is_int(value: object) -> bool:
    """Return whether a value is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_int(name: str, value: Any, lowest: int = 0) -> None:
    """Check a whole number of an option.

    Args:
        name: of the option.
        value: of the option.
        lowest: smallest value allowed.

    Raises:
        InvalidArgument: it is no int, below `lowest`, or not of 63 bits.
    """
    if not is_int(value) or not lowest <= value < 1 << 63:
        raise InvalidArgument(f"{name}={value!r} is not a whole number from {lowest} on; give one")


def check_timeout(value: Any) -> None:
    """Check a timeout in milliseconds.

    Raises:
        InvalidArgument: it is no number from 1 to `MAX_TIMEOUT_MS`.
    """
    fits = is_int(value) or (isinstance(value, float) and math.isfinite(value))
    if not fits or not 1 <= value <= MAX_TIMEOUT_MS:
        raise InvalidArgument(
            f"timeout_ms={value!r} is not a number of milliseconds from 1 to {MAX_TIMEOUT_MS}; give one"
        )


def check_text(name: str, value: Any) -> None:
    """Check a text that is sent.

    Raises:
        InvalidArgument: it is no str, or has a lone surrogate.
    """
    if not isinstance(value, str):
        raise InvalidArgument(
            f"{name}={value!r} is a {type(value).__name__}, not a text; give a str"
        )
    utf8_bytes(value)


def check_list(name: str, value: Any) -> list[Any]:
    """Return a list of names, or of addresses; an iterator is read once.

    Raises:
        InvalidArgument: it is not iterable.
    """
    if not isinstance(value, Iterable) or isinstance(value, bytes):
        raise InvalidArgument(
            f"{name}={value!r} is a {type(value).__name__}, not a list; pass a list"
        )
    return list(value)


def check_replicas(replicas: Any, what: str = "table") -> None:
    """Check a number of replicas before it is sent; the master checks it against the cluster.

    Args:
        replicas: of each tablet.
        what: has them.

    Raises:
        InvalidArgument: it is not a positive int of 32 bits.
    """
    if not is_int(replicas) or not 0 < replicas < 1 << 31:
        raise InvalidArgument(
            f"replicas={replicas!r}; a {what} has an odd number of them, from 1 on; give a whole number"
        )


def check_age(name: str, age_ms: Any) -> None:
    """Check an age in milliseconds.

    Raises:
        InvalidArgument: it is not a whole number from 0 on.
    """
    if not is_int(age_ms) or not 0 <= age_ms < 1 << 63:
        raise InvalidArgument(
            f"{name}={age_ms!r} is no age; give a number of milliseconds, from 0 on"
        )


def check_reserve(reserve_seconds: Any) -> None:
    """Check the time for which something dropped can be recalled.

    Raises:
        InvalidArgument: it is not a whole number of seconds from 0 on.
    """
    if not is_int(reserve_seconds) or not 0 <= reserve_seconds < 1 << 63:
        raise InvalidArgument(
            f"reserve_seconds={reserve_seconds!r} is no time; give 0 or a number of seconds"
        )
