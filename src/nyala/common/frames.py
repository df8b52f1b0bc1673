"""Schema of a new table, from an Arrow schema or from data.

The types of a frame are mapped to the nearest supported ones that hold all its values; values that might not
fit are converted as in a write: a frame that defines a table can be written to it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from nyala.common.batches import is_pandas, one_table, to_batches
from nyala.common.casting import family
from nyala.common.errors import InvalidArgument
from nyala.common.python_values import array_of, kinds_of
from nyala.common.schema import Schema, from_arrow
from nyala.common.types import plain_type

_WIDER: Mapping[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}
_MAX_DIGITS = 38


def definition_of(
    given: Any,
    primary_key: Collection[str],
    *,
    defaults: Mapping[str, Any] | None = None,
    immutable: Collection[str] = (),
) -> Schema:
    """Return the schema of a new table.

    Args:
        given: an Arrow schema, used unchanged; or data as for `to_batches`, or an object with
            `__arrow_c_schema__`: unsigned integers become wider signed ones, times become microseconds, naive
            or in UTC. The levels of a pandas index become columns if all have names.
        primary_key: names of the key columns, in key order.
        defaults: value by column name for new rows that do not set the column.
        immutable: names of columns that only the first write of a row sets.

    Raises:
        InvalidArgument: as `from_arrow`; a column with only nulls; neither schema nor data.
        SchemaMismatch: a value that its column cannot hold exactly.
    """
    if isinstance(given, pa.Schema):
        return from_arrow(given, primary_key, defaults=defaults, immutable=immutable)
    shape = _shape(given)
    fields = [f.with_type(_stored(f.name, f.type)) for f in shape]
    schema = pa.schema(fields)
    made = from_arrow(schema, primary_key, defaults=defaults, immutable=immutable)
    by_value = _is_rows(given) or is_pandas(given)  # Python objects hide value kinds
    if _is_reiterable(given) and (by_value or not schema.equals(shape)):
        to_batches(given, made)
    return made


def _is_rows(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, str | bytes)


def _is_reiterable(given: Any) -> bool:
    """Return whether the data can be read more than once."""
    return not isinstance(given, pa.RecordBatchReader) and not _is_schema(given)


def _is_schema(given: Any) -> bool:
    return hasattr(given, "__arrow_c_schema__") and not hasattr(given, "__arrow_c_array__")


def _shape(given: Any) -> pa.Schema:
    try:
        if _is_rows(given):
            return _of_rows(given)
        if isinstance(given, pa.RecordBatchReader):
            return given.schema
        if _is_schema(given):
            return pa.schema(given)
        table = one_table(given, None)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as err:
        raise InvalidArgument(
            f"schema=: the frame cannot be read: {err}; pass an Arrow schema"
        ) from err
    if table is None:
        raise InvalidArgument(
            f"schema= takes an Arrow schema or a frame, not {type(given).__name__}; pass "
            "pa.schema([(name, type), ...])"
        )
    return table.schema


def _stored(name: str, kind: pa.DataType) -> pa.DataType:
    """Return the stored type for a frame's type; an unsupported type is returned as it is."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _stored(name, kind.value_type)
    if types.is_null(kind):
        raise InvalidArgument(
            f"column {name!r} has only nulls, so its type is unknown; cast it, or pass an Arrow schema"
            ""
        )
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_decimal(kind) and kind.precision <= _MAX_DIGITS and kind.scale >= 0:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_fixed_size_binary(kind):
        return pa.binary()
    plain = plain_type(kind)
    return plain if isinstance(plain, pa.BaseExtensionType) else _WIDER.get(plain, plain)


def _of_rows(rows: Sequence[Any]) -> pa.Schema:
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
    return pa.schema([(name, _type_of(name, values)) for name, values in columns.items()])


def _type_of(name: str, values: list[Any]) -> pa.DataType:
    """Return one type for Python values: their own, or one that all of them convert to."""
    apart = [array_of(mine, None, name, 0).type for mine in kinds_of(values)]
    types = {_stored(name, kind) for kind in apart}
    if len(types) < 2:
        return types.pop() if types else pa.null()
    families = {family(kind) for kind in types}
    if families == {"integer"}:
        return max(types, key=lambda t: t.bit_width)
    if families <= {"integer", "float"}:
        return pa.float64()
    if families == {"date", "naive timestamp"}:
        return pa.timestamp("us")
    raise InvalidArgument(
        f"column {name!r} mixes {' and '.join(sorted(families))} values; cast them to one type, or pass an "
        "Arrow schema"
    )
