"""Types of pandas columns: numpy's, except for columns that numpy would change.

numpy has no null: an integer column with nulls would become one of doubles, whose integers are exact up to
2**53 only. The types are kept as the metadata that pyarrow reads in `to_pandas`.
"""

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.optional.needed import needed
from nyala.common.optional.pandas_lookup import look_for_pandas

_DAYS = (-719_162, 2_932_896)
"""First and last day of Python's `date`."""
_NO_TIME = -(2**63)
"""The number that numpy uses for a missing time."""


def to_pandas(table: pa.Table) -> Any:
    """Return a table as a pandas frame that has all its values, also nulls beside NaN."""
    pandas = needed("pandas", "to_pandas()")
    look_for_pandas()
    return with_pandas_types(table).to_pandas(
        types_mapper=lambda kind: pandas.ArrowDtype(kind) if pa.types.is_nested(kind) else None
    )


def with_pandas_types(table: pa.Table) -> pa.Table:
    """Return a table whose own `to_pandas` keeps all values of its columns that are not nested."""
    kinds: dict[str, pa.DataType | None] = {}
    for field in table.schema:  # of two types under one name, pyarrow could convert only one
        same = kinds.setdefault(field.name, field.type) == field.type
        kinds[field.name] = field.type if same else None
    found = {
        field.name: name
        for field, values in zip(table.schema, table.columns, strict=True)
        if kinds[field.name] is not None and (name := _pandas_type(values)) is not None
    }
    if not found:
        return table
    columns = [
        {"name": name, "field_name": name, "numpy_type": kind, "pandas_type": kind, "metadata": None}
        for name, kind in found.items()
    ]  # fmt: skip
    described = {"index_columns": [], "column_indexes": [], "columns": columns}
    return table.replace_schema_metadata({"pandas": json.dumps(described)})


def _pandas_type(values: pa.ChunkedArray) -> str | None:
    """Return the name of pandas' type for a column; None: numpy's type, or Python objects."""
    kind, types = values.type, pa.types
    if values.null_count and types.is_integer(kind):
        return str(kind).replace("i", "I", 1).replace("uI", "UI")
    if values.null_count and types.is_boolean(kind):
        return "boolean"
    if values.null_count == len(values):
        return None
    if types.is_floating(kind):
        return f"{kind}[pyarrow]" if pc.any(pc.is_nan(values)).as_py() else None
    if types.is_date32(kind) or types.is_timestamp(kind):
        ends = pc.min_max(values)
        low, high = ends["min"].value, ends["max"].value
        held = _DAYS[0] <= low and high <= _DAYS[1] if types.is_date32(kind) else low != _NO_TIME
        return None if held else f"{kind}[pyarrow]"
    return None
