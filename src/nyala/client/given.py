"""What users give where a definition wants something else: refused here, before anything is asked."""

from typing import Any

import pyarrow as pa

from nyala.common.errors import InvalidArgument


def whole(value: object) -> bool:
    """Whether a value is a whole number, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_replicas(replicas: Any) -> None:
    """Refuse what the masters could not even be told.

    Raises:
        InvalidArgument: no whole number, or none that fits.
    """
    if not whole(replicas) or not 0 < replicas < 1 << 31:
        raise InvalidArgument(
            f"replicas={replicas!r}; a table has an odd number of them, from 1 on; give a whole number"
        )


def arrow_schema_of(schema: Any) -> pa.Schema:
    """Return an Arrow schema, also of what says its own (`__arrow_c_schema__`, a frame's included).

    Raises:
        InvalidArgument: it says none.
    """
    if isinstance(schema, pa.Schema):
        return schema
    if hasattr(schema, "__arrow_c_schema__"):
        return pa.schema(schema)
    if hasattr(schema, "__arrow_c_stream__"):  # a frame: its columns, none of its rows
        return pa.RecordBatchReader.from_stream(schema).schema
    raise InvalidArgument(
        f"schema= takes an Arrow schema or a frame, not {type(schema).__name__}; pass "
        "pa.schema([(name, type), ...])"
    )
