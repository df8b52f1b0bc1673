"""Python values as Arrow arrays, exactly: what Arrow would cut off or convert without a word is refused.

Arrow takes the type of a list from its first values: a datetime among dates loses its time, a small float
among integers its fraction, a bool becomes a number; nanoseconds of pandas' timestamps are lost in any
company. So values of different kinds are converted apart, each kind as a column of its own would be.
"""

from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.casting import exact_cast
from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.far_times import FarTime

_UNIFORM_TYPES = frozenset([bool, int, float, str, bytes, date, Decimal])
"""Types whose values are all of one kind."""
_NULL_TYPES = frozenset(["NoneType", "NaTType", "NAType"])
_NANOSECOND = "nanosecond"
"""Attribute that pandas' timestamps have and Python's do not."""
_FAILURES = (pa.ArrowException, ValueError, TypeError, OverflowError)

Kind = tuple[type, Any, bool]


def array_of(
    values: Sequence[Any], wanted: pa.DataType | None, name: str, first_row: int
) -> pa.Array:
    """Return the values of a column: of the type that they have by themselves, or else of the wanted one.

    Args:
        values: Python's, numpy's, pandas' or Arrow's scalars; None, NaT and NA are nulls.
        wanted: the stored type; None: of a column that is not stored.
        name: of the column, in errors.
        first_row: the number that errors give to the first value.

    Raises:
        SchemaMismatch: a value that is lost or changed on the way; names its row (details: `row`).
    """
    try:
        kinds = _kinds(values)
        if len(kinds) < 2 or wanted is None:
            return _of_one_kind(values, wanted)
        return _of_several_kinds(values, kinds, wanted)
    except (*_FAILURES, SchemaMismatch) as err:
        raise _conversion_error(values, wanted, name, first_row, err) from err


def python_of(value: pa.Scalar) -> Any:
    """Return Arrow's value as Python's own; as `FarTime` a time that Python's types cannot hold.

    Lists and structs, which SQL makes, hold such times too.
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
    """Return a column as a list, each value as `python_of` has it."""
    try:
        listed: list[Any] = values.to_pylist()
    except (OverflowError, ValueError):
        return [python_of(value) for value in values]
    return listed


def shown(value: Any) -> str:
    """Return a value in an error's words: its `repr`, which Arrow's dates beyond Python's years lack."""
    if isinstance(value, tuple | list):
        return f"({', '.join(map(shown, value))})"
    return repr(_to_python(value))


def _to_python(value: Any) -> Any:
    return python_of(value) if isinstance(value, pa.Scalar) else value


def scalar_of(value: Any, wanted: pa.DataType, what: str) -> pa.Scalar:
    """Return one value of a stored type.

    Args:
        value: not None.
        wanted: the type.
        what: begins the message, for instance "default 5 of column 'a'".

    Raises:
        InvalidArgument: it does not convert without loss.
    """
    try:
        made = _cast_exactly([value], wanted).combine_chunks()[0]
    except _FAILURES as err:
        raise InvalidArgument(
            f"{what} is not a valid {wanted}: {err}; give a value of that type"
        ) from err
    except SchemaMismatch as err:
        raise InvalidArgument(
            f"{what} is not a valid {wanted}: {err.message}; give a value of that type"
        ) from err
    if not made.is_valid:
        raise InvalidArgument(f"{what} is null; give a value of type {wanted}, or None alone")
    return made


def _cast_exactly(values: Sequence[Any], wanted: pa.DataType) -> pa.ChunkedArray:
    return exact_cast(pa.chunked_array([_of_one_kind(values, wanted)]), wanted, "the value")


def _kinds(values: Sequence[Any]) -> set[Kind]:
    """Return which kinds of values there are, nulls apart."""
    types = [t for t in set(map(type, values)) if t.__name__ not in _NULL_TYPES]
    if len(types) < 2 and _UNIFORM_TYPES.issuperset(types):
        return {(t, None, False) for t in types}
    return {_kind(v) for v in values if not _is_null(v)}


def kinds_of(values: Sequence[Any]) -> list[list[Any]]:
    """Return the values of each kind, nulls left out."""
    kinds = _kinds(values)
    if len(kinds) < 2:
        return [list(values)] if kinds else []
    return [[v for v in values if not _is_null(v) and _kind(v) == kind] for kind in kinds]


def _kind(value: Any) -> Kind:
    aware = isinstance(value, datetime) and value.tzinfo is not None
    return type(value), getattr(value, "dtype", getattr(value, "type", None)), aware


def _is_null(value: Any) -> bool:
    return type(value).__name__ in _NULL_TYPES


def _of_one_kind(values: Sequence[Any], wanted: pa.DataType | None) -> pa.Array:
    """Return values of one kind as Arrow has them."""
    types = {*map(type, values)}
    # To Arrow a missing time of pandas among dates is a day of year 1.
    if any(t.__name__ in _NULL_TYPES for t in types - {type(None)}):
        values = [None if _is_null(v) else v for v in values]
    if FarTime in types:
        values = [v.scalar if isinstance(v, FarTime) else v for v in values]
    array = pa.array(values)
    finer = pa.types.is_temporal(array.type) and any(hasattr(t, _NANOSECOND) for t in types)
    if finer and any(getattr(value, _NANOSECOND, 0) for value in values):
        raise ValueError("it has nanoseconds, but times are stored in microseconds; round it first")
    if getattr(array.type, "tz", None) is not None and any(map(_has_odd_offset, values)):
        raise ValueError("its UTC offset is not a whole number of seconds; convert it to UTC first")
    if wanted == pa.float32() and array.type == pa.float64():
        return _to_float32(array)
    return array


def _has_odd_offset(value: Any) -> bool:
    """Whether Arrow takes a datetime for another moment than Python does.

    One without an offset, which Python calls naive whatever its zone is, becomes UTC; of an offset,
    microseconds are lost.
    """
    if not isinstance(value, datetime):
        return False
    offset = value.utcoffset()
    return offset is None or offset.microseconds != 0


def _of_several_kinds(values: Sequence[Any], kinds: set[Kind], wanted: pa.DataType) -> pa.Array:
    """Return values of several kinds as the wanted type, in which they are one kind."""
    rows: dict[Any, list[int]] = {kind: [] for kind in kinds}
    absent: list[int] = []
    for row, value in enumerate(values):
        (absent if _is_null(value) else rows[_kind(value)]).append(row)
    parts, order = [pa.nulls(len(absent), wanted)], absent
    for mine in rows.values():
        parts += _cast_exactly([values[r] for r in mine], wanted).chunks
        order = order + mine
    places = pc.sort_indices(pa.array(order, pa.int64()))
    return pa.concat_arrays(parts).take(places)


def _to_float32(array: pa.Array) -> pa.Array:
    """Python has no 32-bit float: its floats become the nearest ones, unless they are beyond."""
    made = array.cast(pa.float32())
    grown = pc.and_(pc.is_inf(made), pc.is_finite(array)).fill_null(False)
    if pc.any(grown, min_count=0).as_py():
        raise ValueError("it is outside the range of a 32-bit float")
    return made


def _conversion_error(
    values: Sequence[Any], wanted: pa.DataType | None, name: str, first_row: int, err: Exception
) -> SchemaMismatch:
    """Return the error that names the first value that cannot be converted."""
    row, why = 0, err
    for number, value in enumerate(values):
        try:
            if not _is_null(value):
                _of_one_kind([value], wanted) if wanted is None else _cast_exactly([value], wanted)
        except (*_FAILURES, SchemaMismatch) as found:
            row, why = number, found
            break
    said = why.message if isinstance(why, SchemaMismatch) else str(why)
    return SchemaMismatch(
        f"column {name!r}, row {first_row + row}: {str(_to_python(values[row]))[:60]!r} of type "
        f"{type(values[row]).__name__} does not convert to {wanted or 'one type'}: {said}",
        {"row": str(first_row + row)},
    )
