"""Checks of the arguments of definitions, before a request is sent."""

from typing import Any

from nyala.common.errors import InvalidArgument


def whole(value: object) -> bool:
    """Whether a value is a whole number, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_replicas(replicas: Any) -> None:
    """Refuse what the masters could not even be told.

    Raises:
        InvalidArgument: no whole number, or none that fits.
    """
    if not whole(replicas) or not 0 < replicas < 1 << 31:
        raise InvalidArgument(
            f"replicas={replicas!r}; a table has an odd number of them, from 1 on; give a whole number"
        )
