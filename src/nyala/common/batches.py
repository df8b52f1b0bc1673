"""Conversion of user data (Arrow, data frames, lists of dicts) to record batches with a table's types.

Columns are matched by name. pandas and polars are never imported.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.optional.pandas_lookup import look_for_pandas
from nyala.common.schema import Column, Schema, arrow_schema
from nyala.common.types import plain_type
from nyala.common.values.casting import EXACT, Conversion, exact_cast
from nyala.common.values.python_values import array_of

_EXPECTED = "an Arrow table, batch or stream, a pandas or polars frame, or a list of dicts with the same keys"

FEW = 64
UNIFORM_TYPES = frozenset([pa.string(), pa.large_string(), pa.bool_(), pa.null()])
"""Arrow types that Arrow infers for Python objects only if all values are of one kind."""
_OWN_TYPES: Mapping[int, type] = {
    pa.bool_().id: bool,
    **{kind.id: int for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    pa.float64().id: float,
    pa.string().id: str,
    pa.binary().id: bytes,
}


def to_batches(
    data: Any,
    schema: Schema,
    *,
    extra: Sequence[str] = (),
    first_row: int = 0,
    conversion: Conversion = EXACT,
) -> list[pa.RecordBatch]:
    """Convert user data to the table's types, with columns in schema order.

    Args:
        data: anything with `__arrow_c_stream__` or `__arrow_c_array__`, a RecordBatch, a Table, a
            pandas frame (a level of its index is used if its name is a column of the table and of no column
            of the frame), a list of dicts. A dict with other keys than the one before begins a new batch,
            because an absent column is not a null.
        schema: schema of the table.
        extra: names of further required columns, which are passed through unchanged, as the last ones.
        first_row: number of the first row, for errors.
        conversion: the conversions that the user requests.

    Returns:
        Batches in row order, with all key columns and those others that the data has. Values are valid Arrow
        data; nulls are not checked. Data without rows give no batch; they need have no columns, but those
        that they have are checked. The column types of a pandas frame without rows are not: pandas chose
        them without values.

    Raises:
        SchemaMismatch: an unknown or missing column, or a value that its column cannot hold exactly; the
            message names the column and the row (details: `row`).
        InvalidArgument: an unsupported kind of data, malformed data, a duplicate column.
    """
    look_for_pandas()
    if not extra and conversion == EXACT and (small := _few_dicts(data, schema)) is not None:
        return [small]
    made: list[pa.RecordBatch] = []
    row = first_row
    for table in _tables(data, schema, extra, first_row, conversion):
        _check_names(table.column_names, schema, extra)
        columns = [c for c in schema.columns if c.name in table.column_names]
        cast = [_cast(table.column(c.name), c, row, conversion) for c in columns]
        fields = [*arrow_schema(columns), *(table.schema.field(name) for name in extra)]
        cast.extend(table.column(name) for name in extra)
        combined = pa.Table.from_arrays(cast, schema=pa.schema(fields)).combine_chunks()
        made.extend(batch for batch in combined.to_batches() if len(batch))
        row += len(table)
    return made


def _few_dicts(data: Any, schema: Schema) -> pa.RecordBatch | None:
    """Convert a few dicts whose values have the columns' own Python types; None: use the general conversion.

    A faster path with the same result; any problem with the data is left to the general one.
    """
    if type(data) is not list or not 0 < len(data) <= FEW or type(data[0]) is not dict:
        return None
    names = data[0].keys()
    columns = [c for c in schema.columns if c.name in names]
    if len(columns) != len(names) or not all(c.name in names for c in schema.key_columns):
        return None
    if not all(type(row) is dict and row.keys() == names for row in data):
        return None
    arrays = []
    for column in columns:
        values = [row[column.name] for row in data]
        own = _OWN_TYPES.get(column.type.id)
        if own is None or not all(v is None or type(v) is own for v in values):
            return None
        try:
            arrays.append(pa.array(values, column.type))
        except (pa.ArrowException, ValueError, OverflowError):
            return None
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def _cast(
    values: pa.ChunkedArray, column: Column, first_row: int, conversion: Conversion
) -> pa.ChunkedArray:
    try:
        return exact_cast(values, column.type, f"column {column.name!r}", first_row, conversion)
    except (pa.ArrowException, OverflowError) as err:
        raise SchemaMismatch(
            f"column {column.name!r} of type {values.type} does not convert to {column.type}: {err}"
        ) from err


def _check_names(names: Sequence[str], schema: Schema, extra: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"column {name!r} appears twice in the data; rename or drop one")
        if name not in schema.by_name and name not in extra:
            raise SchemaMismatch(
                f"the table has no column {name!r}; its columns are: {', '.join(schema.by_name)}"
            )
    for name in [*(c.name for c in schema.key_columns), *extra]:
        if name not in names:
            what = "key column" if name in schema.by_name else "column"
            raise SchemaMismatch(f"the data has no {what} {name!r}; it has: {', '.join(names)}")


def _tables(
    data: Any, schema: Schema, extra: Sequence[str], first_row: int, conversion: Conversion
) -> list[pa.Table]:
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | Mapping):
        return _of_dicts(data, schema, extra, first_row, conversion)
    try:
        table = one_table(data, schema.by_name)
        if table is not None:
            table.validate(full=True)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as err:
        raise InvalidArgument(
            f"the data cannot be read as a table: {err}; pass {_EXPECTED}"
        ) from err
    if table is None:
        raise InvalidArgument(
            f"a {type(data).__name__} is not table data; {_remedy(data)}pass {_EXPECTED}"
        )
    frame = is_pandas(data)
    if not table.num_columns and not len(data if frame else table):
        return []
    return [_of_pandas(data, table, schema, first_row, conversion) if frame else table]


def _remedy(data: Any) -> str:
    """Return what makes table data of a polars query; empty: of something else."""
    return "call .collect() on it, or " if is_lazy(data) else ""


def _of_pandas(
    frame: Any, table: pa.Table, schema: Schema, first_row: int, conversion: Conversion
) -> pa.Table:
    """Convert again those columns of a pandas frame in which Arrow loses values.

    Of Python objects, also as categories, Arrow infers the type from the first values, and truncates others:
    they are converted as in a list of dicts. NaN of other columns becomes null, unless the user keeps it.

    Args:
        frame: the frame.
        table: the frame as Arrow converts it, as of `one_table`.
        schema: schema of the stored table.
        first_row: number of the first row, for errors.
        conversion: the conversions that the user requests.
    """
    for number, field in enumerate(table.schema):
        column = schema.by_name.get(field.name)
        if column is None:
            continue
        if not len(frame):  # its type was chosen without values
            table = table.set_column(number, field.name, pa.nulls(0, column.type))
            continue
        values = series_at(frame, field.name, number)
        keep_nan = conversion.nan_is_null is False and pa.types.is_floating(column.type)
        if is_object(values) and (keep_nan or plain_type(field.type) not in UNIFORM_TYPES):
            plain = plain_objects(values, keep_nan)
            made = array_of(plain, column.type, field.name, first_row, conversion)
        elif keep_nan and isinstance(values.dtype, np.dtype) and values.dtype.kind == "f":
            made = pa.array(values.to_numpy(), from_pandas=False)
        else:
            continue
        table = table.set_column(number, field.name, made)
    return table


def series_at(frame: Any, name: str, number: int) -> Any:
    """Return the values of a column of `one_table` as a pandas series.

    Args:
        frame: the frame.
        name: name of the column, which is a text also if pandas has another label.
        number: number of the column; levels of the index follow the columns.
    """
    if number < len(frame.columns):
        return frame.iloc[:, number]
    level = [None if n is None else str(n) for n in frame.index.names].index(name)
    return frame.index.get_level_values(level).to_series()


def is_object(values: Any) -> bool:
    """Return whether a pandas series holds Python objects, also as categories."""
    kind = getattr(values.dtype, "categories", values).dtype
    return isinstance(kind, np.dtype) and kind.kind == "O"


def plain_objects(values: Any, keep_nan: bool = False) -> list[Any]:
    """Return the Python objects of a pandas series, with None for missing ones.

    Args:
        values: the series.
        keep_nan: NaN is not a missing value; of categories it always is.
    """
    objects = values.astype(object)
    missing = objects.isna()
    if keep_nan and values.dtype == object:
        missing &= ~objects.map(lambda value: isinstance(value, float))
    listed: list[Any] = objects.where(~missing, None).tolist()
    return listed


def is_pandas(data: Any) -> bool:
    """Return whether data is a pandas frame, without importing pandas."""
    frame: Any = getattr(sys.modules.get("pandas"), "DataFrame", None)
    return frame is not None and isinstance(data, frame)


def is_frame(data: Any) -> bool:
    """Return whether data is a pandas or polars frame, without importing either."""
    frame: Any = getattr(sys.modules.get("polars"), "DataFrame", None)
    return is_pandas(data) or (frame is not None and isinstance(data, frame))


def is_lazy(data: Any) -> bool:
    """Return whether data is a polars query, without importing polars."""
    lazy: Any = getattr(sys.modules.get("polars"), "LazyFrame", None)
    return lazy is not None and isinstance(data, lazy)


def one_table(data: Any, wanted: Collection[str]) -> pa.Table | None:
    """Return data as an Arrow table; None: an unsupported kind of data.

    Args:
        data: as for `to_batches`, but not a list.
        wanted: names of the levels of a pandas index that are included, after the columns; one that is also a
            column is not.
    """
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if is_pandas(data):
        others = [i for i, n in enumerate(data.index.names) if not _is_wanted(n, wanted, data)]
        keep = len(others) < data.index.nlevels
        if keep and others:
            data = data.set_axis(data.index.droplevel(others))
        return pa.Table.from_pandas(data, preserve_index=keep).replace_schema_metadata(None)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data).read_all()
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)])
    return None


def _is_wanted(level: Any, wanted: Collection[str], frame: Any) -> bool:
    """Return whether a level of a pandas index becomes a column."""
    return level is not None and str(level) in wanted and str(level) not in map(str, frame.columns)


def _of_dicts(
    rows: Sequence[Any],
    schema: Schema,
    extra: Sequence[str],
    first_row: int,
    conversion: Conversion,
) -> list[pa.Table]:
    for kind in set(map(type, rows)):
        if not issubclass(kind, Mapping):
            number = next(i for i, row in enumerate(rows) if type(row) is kind)
            raise InvalidArgument(
                f"row {first_row + number} is a {kind.__name__}, not a dict; pass {_EXPECTED}"
            )
    tables: list[pa.Table] = []
    first = first_row
    for _, group in groupby(rows, key=frozenset):
        run = list(group)
        names = list(run[0])
        for name in names:
            if not isinstance(name, str):
                raise InvalidArgument(f"row {first}: a column name is a str, not {name!r}")
        _check_names(names, schema, extra)
        types = [schema.by_name[n].type if n in schema.by_name else None for n in names]
        arrays = [
            array_of([r[n] for r in run], kind, n, first, conversion)
            for n, kind in zip(names, types, strict=True)
        ]
        tables.append(pa.Table.from_arrays(arrays, names=names))
        first += len(run)
    return tables
