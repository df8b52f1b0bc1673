"""Exact conversion of Python values to Arrow arrays: values that Arrow would truncate or change are rejected.

Arrow infers the type of a list from its first values: a datetime among dates loses its time, a small float
among integers its fraction, a bool becomes a number; the nanoseconds of pandas timestamps are always lost. So
values of different kinds are converted separately, each kind as a column of its own. Of numpy's `datetime64`
Arrow takes some units only, not NaT of days, and ignores a multiple of a unit (`datetime64[25s]`).
"""

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.values.casting import EXACT, Conversion, exact_cast, family
from nyala.common.values.far_times import FarTime

_UNIFORM_TYPES = frozenset([bool, int, float, str, bytes, date, Decimal])
"""Python types whose values are all of one kind."""
_NULL_TYPES = frozenset(["NoneType", "NaTType", "NAType"])
_NANOSECOND = "nanosecond"
"""Attribute of pandas timestamps that Python's do not have."""
_FAILURES = (pa.ArrowException, ValueError, TypeError, OverflowError)
_LONGS = (-(2**63), 2**63 - 1)
_NUMPY_SPANS = (np.datetime64, np.timedelta64)
_TAKEN = {
    "integer": "an int",
    "float": "a float or an int",
    "decimal": "a Decimal or an int",
    "bool": "a bool",
    "string": "a str",
    "binary": "bytes",
    "date": "a date",
    "naive timestamp": "a datetime without a time zone",
    "zoned timestamp": "a datetime with a time zone",
}
"""Python values for columns, by family of types."""

_DATES = ("Y", "M", "W", "D")
_PER_UNIT = {"h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds of a unit."""
_PER_MICROSECOND = {"ns": 10**3, "ps": 10**6, "fs": 10**9, "as": 10**12}
_ARROW_UNITS = frozenset(["s", "ms", "us", "ns"])
_DAYS = (-(2**31), 2**31 - 1)

Kind = tuple[type, Any, bool]


class _InexactValue(ValueError):
    """Error of a value that no stored type holds, in words for the user."""


def array_of(
    values: Sequence[Any],
    wanted: pa.DataType | None,
    name: str,
    first_row: int,
    conversion: Conversion = EXACT,
) -> pa.Array:
    """Return the values of a column as an array, of their inferred type or of the wanted one.

    Args:
        values: scalars of Python, numpy, pandas or Arrow; None, NaT and NA are nulls.
        wanted: the stored type; None: the column is not stored.
        name: name of the column, for errors.
        first_row: row number of the first value, for errors.
        conversion: the conversions that the user requests.

    Raises:
        SchemaMismatch: a value that would be changed; the message names its row (details: `row`).
    """
    try:
        kinds = _kinds(values)
        if len(kinds) < 2 or wanted is None:
            return _of_one_kind(values, wanted)
        return _of_several_kinds(values, kinds, wanted, conversion)
    except (*_FAILURES, SchemaMismatch) as err:
        raise _conversion_error(values, wanted, name, first_row, conversion, err) from err


def python_of(value: pa.Scalar) -> Any:
    """Convert an Arrow scalar to a Python value; to `FarTime` if Python's types cannot hold the time.

    Lists and structs, as returned by SQL, may contain such times too.
    """
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        if isinstance(value, pa.StructScalar):
            return {name: python_of(value[name]) for name in value}
        if isinstance(value, pa.ListScalar):
            return [python_of(one) for one in value.values]
        if pa.types.is_timestamp(value.type) or pa.types.is_date32(value.type):
            return FarTime(value.value, value.type)
        raise


def list_of(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Convert a column to a list of Python values, as `python_of`."""
    try:
        listed: list[Any] = values.to_pylist()
    except (OverflowError, ValueError):
        return [python_of(value) for value in values]
    return listed


def shown(value: Any) -> str:
    """Format a value for an error: its `repr`, also for Arrow dates outside Python's years."""
    if isinstance(value, tuple | list):
        return f"({', '.join(map(shown, value))})"
    return repr(_to_python(value))


def _to_python(value: Any) -> Any:
    return python_of(value) if isinstance(value, pa.Scalar) else value


def scalar_of(value: Any, wanted: pa.DataType, what: str) -> pa.Scalar:
    """Convert one value to a stored type.

    Args:
        value: not None.
        wanted: the type.
        what: start of the message, such as "default 5 of column 'a'".

    Raises:
        InvalidArgument: the conversion is not exact.
    """
    try:
        made = _cast_exactly([value], wanted).combine_chunks()[0]
    except (*_FAILURES, SchemaMismatch) as err:
        raise InvalidArgument(
            f"{what} is not a valid {wanted}: {_reason(value, wanted, err)}; give a value of that type"
        ) from err
    if not made.is_valid:
        raise InvalidArgument(f"{what} is null; give a value of type {wanted}, or None alone")
    return made


def _cast_exactly(
    values: Sequence[Any], wanted: pa.DataType, conversion: Conversion = EXACT
) -> pa.ChunkedArray:
    array = pa.chunked_array([_of_one_kind(values, wanted)])
    return exact_cast(array, wanted, "the value", conversion=conversion)


def _kinds(values: Sequence[Any]) -> set[Kind]:
    """Return the kinds of the values, without nulls."""
    types = [t for t in set(map(type, values)) if t.__name__ not in _NULL_TYPES]
    if len(types) < 2 and _UNIFORM_TYPES.issuperset(types):
        return {(t, None, False) for t in types}
    return {_kind(v) for v in values if not _is_null(v)}


def kinds_of(values: Sequence[Any]) -> list[list[Any]]:
    """Return the values of each kind, without nulls."""
    kinds = _kinds(values)
    if len(kinds) < 2:
        return [list(values)] if kinds else []
    return [[v for v in values if not _is_null(v) and _kind(v) == kind] for kind in kinds]


def _kind(value: Any) -> Kind:
    aware = isinstance(value, datetime) and value.tzinfo is not None
    return type(value), getattr(value, "dtype", getattr(value, "type", None)), aware


def _is_null(value: Any) -> bool:
    return type(value).__name__ in _NULL_TYPES or _is_numpy_null(value)


def _of_one_kind(values: Sequence[Any], wanted: pa.DataType | None) -> pa.Array:
    """Convert values of one kind as Arrow does."""
    types = {*map(type, values)}
    # Arrow converts a missing pandas time among dates to a day of year 1.
    if any(t.__name__ in _NULL_TYPES or t in _NUMPY_SPANS for t in types - {type(None)}):
        values = [None if _is_null(v) else v for v in values]
        types = {*map(type, values)}
    if types <= {np.datetime64, type(None)} and np.datetime64 in types:
        return _times_of(values)
    if FarTime in types:
        values = [v.scalar if isinstance(v, FarTime) else v for v in values]
    if wanted is not None and pa.types.is_decimal(wanted) and int in types:
        values = [_whole(v) if type(v) is int else v for v in values]
    array = pa.array(values)
    finer = pa.types.is_temporal(array.type) and any(hasattr(t, _NANOSECOND) for t in types)
    if finer and any(getattr(value, _NANOSECOND, 0) for value in values):
        raise _InexactValue(
            "it has nanoseconds, but times are stored in microseconds; round it first"
        )
    if getattr(array.type, "tz", None) is not None and any(map(_has_odd_offset, values)):
        raise _InexactValue(
            "its UTC offset is not a whole number of seconds; convert it to UTC first"
        )
    if wanted == pa.float32() and array.type == pa.float64():
        return _to_float32(array)
    return array


def _whole(value: int) -> int | Decimal:
    """Return an integer of more than 64 bits as a decimal number: Arrow takes no such integer."""
    return value if _LONGS[0] <= value <= _LONGS[1] else Decimal(value)


def _has_odd_offset(value: Any) -> bool:
    """Return whether Arrow takes a datetime for another time than Python does.

    One without an offset, which Python treats as naive with any zone, becomes UTC; microseconds of an
    offset are lost.
    """
    if not isinstance(value, datetime):
        return False
    offset = value.utcoffset()
    return offset is None or offset.microseconds != 0


def _of_several_kinds(
    values: Sequence[Any], kinds: set[Kind], wanted: pa.DataType, conversion: Conversion
) -> pa.Array:
    """Convert values of several kinds to the wanted type, each kind separately.

    Args:
        values: the values.
        kinds: their kinds.
        wanted: the stored type.
        conversion: the conversions that the user requests.
    """
    rows: dict[Any, list[int]] = {kind: [] for kind in kinds}
    absent: list[int] = []
    for row, value in enumerate(values):
        (absent if _is_null(value) else rows[_kind(value)]).append(row)
    parts, order = [pa.nulls(len(absent), wanted)], absent
    for mine in rows.values():
        parts += _cast_exactly([values[r] for r in mine], wanted, conversion).chunks
        order = order + mine
    places = pc.sort_indices(pa.array(order, pa.int64()))
    return pa.concat_arrays(parts).take(places)


def _to_float32(array: pa.Array) -> pa.Array:
    """Round Python floats to 32 bits; reject those outside the range."""
    made = array.cast(pa.float32())
    grown = pc.and_(pc.is_inf(made), pc.is_finite(array)).fill_null(False)
    if pc.any(grown, min_count=0).as_py():
        raise _InexactValue("it is outside the range of a 32-bit float")
    return made


def _conversion_error(
    values: Sequence[Any],
    wanted: pa.DataType | None,
    name: str,
    first_row: int,
    conversion: Conversion,
    err: Exception,
) -> SchemaMismatch:
    """Return an error that names the first value that cannot be converted; arguments as `array_of`."""
    row, why = 0, err
    for number, value in enumerate(values):
        try:
            if not _is_null(value):
                _of_one_kind([value], wanted) if wanted is None else _cast_exactly(
                    [value], wanted, conversion
                )
        except (*_FAILURES, SchemaMismatch) as found:
            row, why = number, found
            break
    return SchemaMismatch(
        f"column {name!r}, row {first_row + row}: {str(_to_python(values[row]))[:60]!r} of type "
        f"{type(values[row]).__name__} does not convert to {wanted or 'one type'}: "
        f"{_reason(values[row], wanted, why)}",
        {"row": str(first_row + row)},
    )


def _reason(value: Any, wanted: pa.DataType | None, err: Exception) -> str:
    """Return in the product's own words why a value was refused.

    Args:
        value: the value.
        wanted: the stored type; None: the column is not stored.
        err: the error of the conversion.
    """
    if isinstance(err, SchemaMismatch):
        return err.message
    if isinstance(err, _InexactValue):
        return str(err)
    if isinstance(value, str):
        return "it is not valid Unicode text"
    if isinstance(value, int):
        return "it is outside the range of the column"
    if isinstance(value, Decimal):
        return (
            "it has more than 76 digits"
            if value.is_finite()
            else "decimals have no NaN and no infinities"
        )
    taken = _TAKEN.get("" if wanted is None else family(wanted), "one of a column's values")
    return f"pass {taken}, or convert the {type(value).__name__} first"


def _is_numpy_null(value: Any) -> bool:
    """Return whether a value is numpy's missing time."""
    return isinstance(value, np.datetime64 | np.timedelta64) and bool(np.isnat(value))


def _times_of(values: Sequence[Any]) -> pa.Array:
    """Return scalars as an array: of dates if their unit is a day or more, otherwise of naive timestamps.

    Args:
        values: `datetime64` of one unit, at least one of them not NaT; None and NaT are nulls.

    Raises:
        _InexactValue: a value has digits below a microsecond that Arrow has no unit for, or is out of range.
    """
    kind = next(v.dtype for v in values if v is not None and not _is_numpy_null(v))
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
    micros = [None if tick is None else _within(_microsecond(tick, unit), _LONGS) for tick in ticks]
    return pa.array(micros, pa.int64()).cast(pa.timestamp("us"))


def _within(number: int, limits: tuple[int, int]) -> int:
    if not limits[0] <= number <= limits[1]:
        raise _InexactValue(
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
        raise _InexactValue("it has digits below a microsecond, which is stored; round it first")
    return whole
