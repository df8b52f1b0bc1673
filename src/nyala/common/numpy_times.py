"""Exact conversion of numpy's `datetime64` scalars of every unit to Arrow dates and times.

Arrow takes some units only, not NaT of days, and ignores a multiple of a unit (`datetime64[25s]`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

_DATES = ("Y", "M", "W", "D")
_PER_UNIT = {"h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds of a unit."""
_PER_MICROSECOND = {"ns": 10**3, "ps": 10**6, "fs": 10**9, "as": 10**12}
_ARROW_UNITS = frozenset(["s", "ms", "us", "ns"])
_TIMES = (-(2**63), 2**63 - 1)
_DAYS = (-(2**31), 2**31 - 1)


class InexactValue(ValueError):
    """Error of a value that no stored type holds, in words for the user."""


def is_numpy_null(value: Any) -> bool:
    """Return whether a value is numpy's missing time."""
    return isinstance(value, np.datetime64 | np.timedelta64) and bool(np.isnat(value))


def times_of(values: Sequence[Any]) -> pa.Array:
    """Return scalars as an array: of dates if their unit is a day or more, otherwise of naive timestamps.

    Args:
        values: `datetime64` of one unit, at least one of them not NaT; None and NaT are nulls.

    Raises:
        InexactValue: a value has digits below a microsecond that Arrow has no unit for, or is out of range.
    """
    kind = next(v.dtype for v in values if v is not None and not is_numpy_null(v))
    unit, multiple = np.datetime_data(kind)
    made = np.array(values, kind)
    absent = np.isnat(made)
    if multiple == 1 and unit in _ARROW_UNITS:
        return pa.array(made.view(np.int64), pa.int64(), mask=absent).cast(pa.timestamp(unit))
    ticks = [
        None if gone else tick * multiple
        for tick, gone in zip(made.view(np.int64).tolist(), absent.tolist(), strict=True)
    ]
    if unit in _DATES:
        days = [None if tick is None else _within(_day(tick, unit), _DAYS) for tick in ticks]
        return pa.array(days, pa.int32()).cast(pa.date32())
    micros = [None if tick is None else _within(_microsecond(tick, unit), _TIMES) for tick in ticks]
    return pa.array(micros, pa.int64()).cast(pa.timestamp("us"))


def _within(number: int, limits: tuple[int, int]) -> int:
    if not limits[0] <= number <= limits[1]:
        raise InexactValue(
            "it is outside the range of dates and times: 32-bit days, 64-bit microseconds"
        )
    return number


def _day(tick: int, unit: str) -> int:
    """Return the first day of a year, month, week or day that is counted from 1970."""
    if unit in ("W", "D"):
        return tick * (7 if unit == "W" else 1)
    months = _within(tick * (12 if unit == "Y" else 1), _DAYS)  # above them numpy's days overflow
    return int(np.datetime64(months, "M").astype("datetime64[D]").astype(np.int64))


def _microsecond(tick: int, unit: str) -> int:
    if unit in _PER_UNIT:
        return tick * _PER_UNIT[unit]
    whole, rest = divmod(tick, _PER_MICROSECOND[unit])
    if rest:
        raise InexactValue("it has digits below a microsecond, which is stored; round it first")
    return whole
