"""Rows of the load generator: values of any column type from row numbers."""

from decimal import Decimal

import numpy as np
import pyarrow as pa

from nyala.common.errors import InvalidArgument

DAYS = 36_500
"""Dates repeat after so many days."""


def column_of(kind: pa.DataType, numbers: np.ndarray) -> pa.Array:
    """Return a value of a type for each row number; equal numbers have equal values.

    Values of types with fewer values than rows repeat.

    Args:
        kind: Arrow type of the column.
        numbers: int64, none negative.

    Raises:
        InvalidArgument: the generator has no values of this type.
    """
    if pa.types.is_boolean(kind):
        return pa.array(numbers % 2 == 0)
    if pa.types.is_integer(kind):
        return pa.array(numbers & ((1 << (kind.bit_width - 1)) - 1), pa.int64()).cast(kind)
    if pa.types.is_floating(kind):
        return pa.array(numbers.astype(np.float64)).cast(kind, safe=False)
    if kind in (pa.string(), pa.binary()):
        return pa.array(numbers).cast(pa.string()).cast(kind)
    if pa.types.is_date(kind):
        return pa.array((numbers % DAYS).astype(np.int32)).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(numbers).cast(kind)
    if pa.types.is_decimal(kind):
        most = 10 ** min(kind.precision - kind.scale, 18)
        return pa.array([Decimal(int(n) % most) for n in numbers], kind)
    raise InvalidArgument(
        f"the load generator has no values of type {kind}: name a table without such a column"
    )


def batch_of(schema: pa.Schema, numbers: np.ndarray) -> pa.Table:
    """Return a row of a table for each row number.

    Args:
        schema: of the table.
        numbers: int64, none negative.
    """
    return pa.table([column_of(field.type, numbers) for field in schema], schema=schema)
