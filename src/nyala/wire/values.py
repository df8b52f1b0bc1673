"""Encoding of a few values (defaults, literals, keys): an uncompressed Arrow IPC stream of one column."""

import pyarrow as pa

from nyala.common.errors import InvalidArgument, TooLarge
from nyala.wire.flight import read_batch, read_schema, split_message
from nyala.wire.ipc_header import read_header

MAX_VALUES_BYTES = 4 << 20
"""Maximum size, in bytes, of the literals of one predicate leaf, or of one default."""


def array_to_ipc(values: pa.Array) -> bytes:
    """Return an Arrow IPC stream of one column."""
    batch = pa.record_batch([values], names=["v"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    made: bytes = sink.getvalue().to_pybytes()
    return made


def array_from_ipc(stored: bytes) -> pa.Array:
    """Return the column of an Arrow IPC stream, validated.

    Raises:
        InvalidArgument: invalid bytes, a compressed body, or not one column in one batch.
        TooLarge: over MAX_VALUES_BYTES.
    """
    if len(stored) > MAX_VALUES_BYTES:
        raise TooLarge(
            f"{len(stored)} bytes of values; at most {MAX_VALUES_BYTES} are allowed in one message",
            {"limit": str(MAX_VALUES_BYTES), "size": str(len(stored))},
        )
    header, rest = split_message(stored)
    schema = read_schema(header)
    header, rest = split_message(rest)
    batch = read_batch(schema, header, rest[: read_header(header).body_bytes])
    if batch.num_columns != 1:
        raise InvalidArgument(
            f"values are encoded as one column, not {batch.num_columns}; use a client of this version"
        )
    return batch.column(0)


def value_to_ipc(value: pa.Scalar | None) -> bytes:
    """Return the encoding of one value, which may be a null; empty for None."""
    return b"" if value is None else array_to_ipc(pa.array([value], value.type))


def value_from_ipc(stored: bytes, column: str, kind: pa.DataType) -> pa.Scalar | None:
    """Decode a column's default; the inverse of `value_to_ipc`.

    Args:
        stored: bytes; empty: no default.
        column: name, for errors.
        kind: Arrow type of the value.

    Raises:
        InvalidArgument: not one value of this type.
        TooLarge: as `array_from_ipc`.
    """
    if not stored:
        return None
    values = array_from_ipc(stored)
    if values.type != kind or len(values) != 1:
        raise InvalidArgument(
            f"the default of column {column[:80]!r} is not one value of type {kind}; give one"
        )
    return values[0]
