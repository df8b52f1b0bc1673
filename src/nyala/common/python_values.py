"""Exact conversion of Python values to Arrow arrays: values that Arrow would truncate or change are rejected.

Arrow infers the type of a list from its first values: a datetime among dates loses its time, a small float
among integers its fraction, a bool becomes a number; the nanoseconds of pandas timestamps are always lost. So
values of different kinds are converted separately, each kind as a column of its own.
"""

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.casting import EXACT, Conversion, exact_cast, family
from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.far_times import FarTime
from nyala.common.numpy_times import InexactValue, is_numpy_null, times_of

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

Kind = tuple[type, Any, bool]


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
    return type(value).__name__ in _NULL_TYPES or is_numpy_null(value)


def _of_one_kind(values: Sequence[Any], wanted: pa.DataType | None) -> pa.Array:
    """Convert values of one kind as Arrow does."""
    types = {*map(type, values)}
    # Arrow converts a missing pandas time among dates to a day of year 1.
    if any(t.__name__ in _NULL_TYPES or t in _NUMPY_SPANS for t in types - {type(None)}):
        values = [None if _is_null(v) else v for v in values]
        types = {*map(type, values)}
    if types <= {np.datetime64, type(None)} and np.datetime64 in types:
        return times_of(values)
    if FarTime in types:
        values = [v.scalar if isinstance(v, FarTime) else v for v in values]
    if wanted is not None and pa.types.is_decimal(wanted) and int in types:
        values = [_whole(v) if type(v) is int else v for v in values]
    array = pa.array(values)
    finer = pa.types.is_temporal(array.type) and any(hasattr(t, _NANOSECOND) for t in types)
    if finer and any(getattr(value, _NANOSECOND, 0) for value in values):
        raise InexactValue(
            "it has nanoseconds, but times are stored in microseconds; round it first"
        )
    if getattr(array.type, "tz", None) is not None and any(map(_has_odd_offset, values)):
        raise InexactValue(
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
        raise InexactValue("it is outside the range of a 32-bit float")
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
    if isinstance(err, InexactValue):
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
