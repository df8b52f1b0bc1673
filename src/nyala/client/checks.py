"""Checks of the arguments of definitions, before a request is sent."""

from typing import Any

from nyala.common.errors import InvalidArgument


def is_int(value: object) -> bool:
    """Return whether a value is an int and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_replicas(replicas: Any) -> None:
    """Check a number of replicas before it is sent; the master checks it against the cluster.

    Raises:
        InvalidArgument: it is not a positive int of 32 bits.
    """
    if not is_int(replicas) or not 0 < replicas < 1 << 31:
        raise InvalidArgument(
            f"replicas={replicas!r}; a table has an odd number of them, from 1 on; give a whole number"
        )
