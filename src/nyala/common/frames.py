"""Schema of a new table, from an Arrow schema or from data.

The types of a frame are mapped to the nearest supported ones that hold all its values; values that might not
fit are converted as in a write: a frame that defines a table can be written to it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from nyala.common.batches import (
    UNIFORM_TYPES,
    is_frame,
    is_lazy,
    is_object,
    is_pandas,
    one_table,
    plain_objects,
    series_at,
    to_batches,
)
from nyala.common.errors import InvalidArgument
from nyala.common.schema import Schema, check_stored, from_arrow
from nyala.common.types import plain_type
from nyala.common.values.casting import EXACT, Conversion, family
from nyala.common.values.python_values import array_of, kinds_of

_WIDER: Mapping[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
_MAX_DIGITS = 38


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """Definition of a new table.

    Attributes:
        schema: its columns and key.
        choices: what was derived from data, a sentence each: column types other than those of the data, and
            parts of the data that are left out.
    """

    schema: Schema
    choices: tuple[str, ...] = ()


def definition_of(
    given: Any,
    primary_key: Collection[str],
    *,
    defaults: Mapping[str, Any] | None = None,
    immutable: Collection[str] = (),
    index: bool = False,
    conversion: Conversion = EXACT,
) -> TableDefinition:
    """Return the definition of a new table.

    Args:
        given: an Arrow schema, used unchanged; or data as for writes, or an object with an Arrow schema:
            unsigned integers become wider signed ones, times become microseconds, naive or in UTC.
        primary_key: names of the key columns, in key order.
        defaults: value by column name for new rows that do not set the column.
        immutable: names of columns that only the first write of a row sets.
        index: all levels of a pandas index become columns; otherwise only those that are in the key.
        conversion: the conversions that the user requests.

    Raises:
        InvalidArgument: as `from_arrow`; a column with only nulls; neither schema nor data.
        SchemaMismatch: a value that its column cannot hold exactly.
    """
    if isinstance(given, pa.Schema):
        return TableDefinition(
            from_arrow(given, primary_key, defaults=defaults, immutable=immutable)
        )
    made, choices = _derived(given, primary_key, index, conversion)
    schema = from_arrow(made, primary_key, defaults=defaults, immutable=immutable)
    for piece in _pieces(given):
        if _is_in_memory(piece):
            to_batches(piece, schema, conversion=conversion)
    return TableDefinition(schema, tuple(choices))


def _derived(
    given: Any, primary_key: Collection[str], index: bool, conversion: Conversion
) -> tuple[pa.Schema, list[str]]:
    """Return the columns for data, and the choices made; arguments as `definition_of`.

    Args:
        given: the data.
        primary_key: names of the key columns.
        index: all levels of a pandas index become columns.
        conversion: the conversions that the user requests.
    """
    left_out: dict[str, None] = {}
    fields: dict[str, list[pa.Field]] = {}
    pieces = 0
    for piece in _pieces(given):
        pieces += 1
        levels = _index_levels(piece, primary_key, index)
        left_out |= dict.fromkeys(_levels_left_out(piece, levels))
        shape = _shape(piece, levels, conversion)
        for field in shape:
            if shape.names.count(field.name) > 1:
                raise InvalidArgument(
                    f"column {field.name!r} is named twice; name each column once"
                )
            if isinstance(field.type, pa.BaseExtensionType):
                check_stored(field.name, field.type)
            fields.setdefault(field.name, []).append(field)
    columns, choices = [], []
    for name, found in fields.items():
        types = dict.fromkeys(f.type for f in found if not pa.types.is_null(f.type))
        stored = _common_type(name, {_stored(name, t, conversion) for t in types or [pa.null()]})
        choices += [f"column {name!r}: {t} is stored as {stored}" for t in types if t != stored]
        columns.append(
            pa.field(name, stored, len(found) < pieces or any(f.nullable for f in found))
        )
    return pa.schema(columns), [*choices, *left_out]


def _pieces(given: Any) -> Iterator[Any]:
    """Yield the parts of data, as a write takes them: the data themselves, or those of an iterable of data.

    Raises:
        InvalidArgument: an iterator, which can be read only once.
    """
    if _is_rows(given) and given and _is_in_memory(given[0]) and not _is_rows(given[0]):
        yield from _runs(given)
    elif _is_rows(given) or _is_in_memory(given) or _schema_of(given) is not None:
        yield given
    elif isinstance(given, Iterator):
        raise InvalidArgument(
            f"schema= would read a {type(given).__name__} to its end, and its rows would be lost; pass "
            "its first part, or an Arrow schema"
        )
    elif isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping | Set):
        yield from _runs(given)
    else:
        yield given


def _runs(given: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of an iterable, each run of dicts as one list."""
    for dicts, run in groupby(given, lambda item: isinstance(item, Mapping)):
        if dicts:
            yield list(run)
        else:
            yield from run


def _is_rows(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str | bytes)


def _is_in_memory(given: Any) -> bool:
    """Return whether all values can be read at no cost, and again."""
    known = isinstance(given, pa.Table | pa.RecordBatch) or is_frame(given) or _is_rows(given)
    return known or hasattr(given, "__arrow_c_array__")


def _schema_of(given: Any) -> pa.Schema | None:
    """Return the Arrow schema of an object, of a stream without reading its rows; None: it has none."""
    if is_lazy(given):
        raise InvalidArgument(
            "schema= takes an Arrow schema or a frame, not a LazyFrame, which is a query; pass "
            "lazy.collect_schema(), or lazy.collect()"
        )
    if isinstance(schema := getattr(given, "schema", None), pa.Schema):
        return schema
    if hasattr(given, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(given).schema
    return pa.schema(given) if hasattr(given, "__arrow_c_schema__") else None


def _index_levels(given: Any, primary_key: Collection[str], index: bool) -> list[str]:
    """Return the names of the levels of a pandas index that become columns; arguments as `definition_of`.

    Args:
        given: the data.
        primary_key: names of the key columns.
        index: all levels.
    """
    if not is_pandas(given):
        if index:
            raise InvalidArgument(
                f"index=True is for a pandas frame, and a {type(given).__name__} has no index; omit it"
            )
        return []
    names = [None if n is None else str(n) for n in given.index.names]
    if index and None in names:
        raise InvalidArgument(
            f"index=True: level {names.index(None)} of the frame's index has no name; name it "
            "(frame.index.name = 'id'), or omit index=True"
        )
    return [n for n in names if n is not None and (index or n in list(primary_key))]


def _levels_left_out(given: Any, levels: Collection[str]) -> Iterator[str]:
    """Yield a sentence about each level of a pandas index that does not become a column."""
    if not is_pandas(given):
        return
    columns = set(map(str, given.columns))
    for number, name in enumerate(given.index.names):
        if name is None and type(given.index).__name__ != "RangeIndex":
            yield f"index level {number} without a name is left out"
        elif name is not None and str(name) in columns:
            yield f"index level {name!r} is left out: a column has this name"
        elif name is not None and str(name) not in levels:
            yield f"index level {name!r} is left out: index=True makes it a column"


def _shape(given: Any, levels: Collection[str], conversion: Conversion) -> pa.Schema:
    """Return the columns of data, with the types of the data.

    Args:
        given: the data.
        levels: levels of a pandas index that become columns.
        conversion: the conversions that the user requests.
    """
    try:
        if _is_rows(given):
            return _of_rows(given, conversion)
        if not _is_in_memory(given):
            shape = _schema_of(given)
        else:
            table = one_table(given, levels)
            shape = None if table is None else table.schema
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as err:
        raise InvalidArgument(
            f"schema=: the frame cannot be read: {err}; pass an Arrow schema"
        ) from err
    if shape is None:
        raise InvalidArgument(
            f"schema= takes an Arrow schema or a frame, not {type(given).__name__}; pass "
            "pa.schema([(name, type), ...])"
        )
    return _with_object_types(given, shape, conversion) if is_pandas(given) else shape


def _with_object_types(frame: Any, shape: pa.Schema, conversion: Conversion) -> pa.Schema:
    """Replace the types of columns of Python objects, which Arrow takes from the first values."""
    for number, field in enumerate(shape):
        values = series_at(frame, field.name, number)
        if is_object(values) and plain_type(field.type) not in UNIFORM_TYPES:
            kind = _type_of(field.name, plain_objects(values), conversion)
            shape = shape.set(number, field.with_type(kind))
    return shape


def _stored(name: str, kind: pa.DataType, conversion: Conversion) -> pa.DataType:
    """Return the stored type for a frame's type; an unsupported type is returned as it is.

    Args:
        name: name of the column, for errors.
        kind: type of the data.
        conversion: the conversions that the user requests.
    """
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _stored(name, kind.value_type, conversion)
    if types.is_null(kind):
        raise InvalidArgument(
            f"column {name!r} has only nulls, so its type is unknown; cast it, or pass an Arrow schema"
            ""
        )
    if types.is_uint64(kind):
        raise InvalidArgument(
            f"column {name!r}: no signed type holds all values of uint64; cast the column to int64 or to "
            "decimal(20,0)"
        )
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_decimal(kind) and conversion.round_decimals:
        return pa.float64()
    if types.is_decimal(kind) and kind.precision <= _MAX_DIGITS and kind.scale >= 0:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    plain = plain_type(kind)
    return plain if isinstance(plain, pa.BaseExtensionType) else _WIDER.get(plain, plain)


def _of_rows(rows: Sequence[Any], conversion: Conversion) -> pa.Schema:
    """Return the columns of a list of dicts, in the order of their first occurrence."""
    columns: dict[str, list[Any]] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidArgument(f"row {number} is a {type(row).__name__}, not a dict; pass dicts")
        for name, value in row.items():
            if not isinstance(name, str):
                raise InvalidArgument(
                    f"row {number}: a column name is a str, not {name!r}; name it"
                )
            columns.setdefault(name, []).append(value)
    return pa.schema(
        [(name, _type_of(name, values, conversion)) for name, values in columns.items()]
    )


def _type_of(name: str, values: list[Any], conversion: Conversion) -> pa.DataType:
    """Return one type for Python values: their own, or one that all of them convert to.

    Args:
        name: name of the column, for errors.
        values: the values.
        conversion: the conversions that the user requests.
    """
    apart = [array_of(mine, None, name, 0).type for mine in kinds_of(values)]
    return _common_type(name, {_stored(name, kind, conversion) for kind in apart})


def _common_type(name: str, types: set[pa.DataType]) -> pa.DataType:
    """Return one stored type to which all of these convert; null if there are none."""
    if len(types) < 2:
        return next(iter(types), pa.null())
    families = {family(kind) for kind in types}
    if families == {"integer"}:
        return max(types, key=lambda t: t.bit_width)
    if families <= {"integer", "float"}:
        return pa.float64()
    if families == {"decimal"}:
        scale = max(t.scale for t in types)
        digits = scale + max(t.precision - t.scale for t in types)
        return (
            pa.decimal128(digits, scale) if digits <= _MAX_DIGITS else pa.decimal256(digits, scale)
        )
    if families == {"date", "naive timestamp"}:
        return pa.timestamp("us")
    raise InvalidArgument(
        f"column {name!r} mixes {' and '.join(sorted(families))} values; cast them to one type, or pass an "
        "Arrow schema"
    )
