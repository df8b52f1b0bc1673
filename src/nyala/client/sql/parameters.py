"""Values for the parameters of a query, as DuckDB takes them.

DuckDB 1.x binds 2**127 as -2**127, a decimal of more than 38 digits as the nearest double, a numpy time with
nanoseconds as an integer, and cuts the nanoseconds of pandas off: such values are refused here. It takes no
numbers of numpy, which are what elements of frames and arrays are.
"""

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import numpy as np

from nyala.common.errors import InvalidArgument

Parameters = Sequence[Any] | Mapping[str, Any] | None
"""Values for the parameters of a query, by position or by name."""

MAX_DEPTH = 64
"""Number of lists and dicts within each other in a value."""
_INTEGERS = range(-(1 << 127), 1 << 127)
_DIGITS = 38


def values_of(parameters: Parameters) -> Any:
    """Return the values of parameters as DuckDB takes them; None: there are none.

    Raises:
        InvalidArgument: neither a list nor a mapping, or a value that DuckDB would change.
    """
    if parameters is None:
        return None
    if isinstance(parameters, Mapping):
        return {name: _value(given, f"parameter ${name}") for name, given in parameters.items()}
    if isinstance(parameters, Sequence) and not isinstance(parameters, str | bytes):
        return [_value(v, f"parameter {number}") for number, v in enumerate(parameters, 1)]
    raise InvalidArgument(
        f"parameters={parameters!r}: pass a list of values for ? or $1, or a dict of values for $name"
    )


def _value(given: Any, name: str, depth: int = 0) -> Any:
    """Return one value; arguments as of `values_of`.

    Args:
        given: the value.
        name: of the parameter, for errors.
        depth: number of lists and dicts that it is in.
    """
    if depth > MAX_DEPTH:
        raise InvalidArgument(
            f"{name} has more than {MAX_DEPTH} lists or dicts within each other; pass a flat value"
        )
    if isinstance(given, np.number | np.bool_ | np.datetime64):
        given = _of_numpy(given, name)
    if getattr(given, "nanosecond", 0) or getattr(given, "nanoseconds", 0):  # of pandas
        raise InvalidArgument(f"{name} is {given!r}, and SQL's times have microseconds; round it")
    if isinstance(given, int) and given not in _INTEGERS:
        raise InvalidArgument(
            f"{name} is the integer {given}, and SQL's largest have 128 bits; pass it as text"
        )
    if isinstance(given, Decimal) and given.is_finite() and _digits(given) > _DIGITS:
        raise InvalidArgument(
            f"{name} is the decimal {given}, and SQL's have at most {_DIGITS} digits; round it, or pass a "
            "float"
        )
    if isinstance(given, list | tuple):
        return [_value(item, name, depth + 1) for item in given]
    if isinstance(given, dict):
        return {key: _value(item, name, depth + 1) for key, item in given.items()}
    return given


def _of_numpy(given: Any, name: str) -> Any:
    """Return a scalar of numpy as a Python value.

    Raises:
        InvalidArgument: a time with nanoseconds.
    """
    if not isinstance(given, np.datetime64 | np.timedelta64):
        return given.item()
    if np.isnat(given):
        return None
    cut = given.astype(f"{given.dtype.kind}8[us]")
    if cut != given:
        raise InvalidArgument(f"{name} is {given!r}, and SQL's times have microseconds; round it")
    return given.item() if isinstance(given.item(), date | timedelta) else cut.item()


def _digits(number: Decimal) -> int:
    """Return the number of digits of a finite decimal; before its point there is one at least."""
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int), "the number is not finite"
    return max(len(digits) + max(exponent, 0), 1 - exponent)
