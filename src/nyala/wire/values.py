"""The bytes of a few values (defaults, literals, keys): an uncompressed Arrow IPC stream of one column."""

import pyarrow as pa

from nyala.common.errors import InvalidArgument, TooLarge
from nyala.wire.ipc_header import RECORD_BATCH, read_header

MAX_VALUES_BYTES = 4 << 20
"""Of the literals of one predicate leaf, or of one default."""


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
        InvalidArgument: damaged bytes, a compressed body, or not one column in one batch.
        TooLarge: over MAX_VALUES_BYTES.
    """
    if len(stored) > MAX_VALUES_BYTES:
        raise TooLarge(
            f"{len(stored)} bytes of values; at most {MAX_VALUES_BYTES} travel in one place",
            {"limit": str(MAX_VALUES_BYTES), "size": str(len(stored))},
        )
    try:
        reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(stored))
        schema = pa.ipc.read_schema(reader.read_next_message())
        message = reader.read_next_message()
        header = read_header(message.metadata)
        if header.kind != RECORD_BATCH or header.compressed or len(schema) != 1:
            raise InvalidArgument("values travel as one uncompressed Arrow batch of one column")
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, StopIteration, ValueError) as err:
        raise InvalidArgument(f"these values are no Arrow stream: {err}") from err
    return batch.column(0)
