"""Arrow schemas and batches in Flight messages: header and body separate, or one encapsulated message.

A batch from outside is not used before `validate(full=True)`: about one malformed batch in five would crash
the process. Bodies have no compression and no dictionaries. Nothing here costs time per row.
"""

import pyarrow as pa

from nyala.common.errors import InvalidArgument
from nyala.wire.flight_data import Bytes, FlightData, decode, encode
from nyala.wire.ipc_header import DICTIONARY_BATCH, RECORD_BATCH, SCHEMA, read_header

__all__ = [
    "Bytes", "FlightData", "batch_data", "batch_message", "batch_parts", "decode", "encode",
    "join_message", "read_batch", "read_message", "read_schema", "schema_data", "schema_message",
    "split_message",
]  # fmt: skip

_CONTINUATION = b"\xff\xff\xff\xff"
_PREFIX_BYTES = 8
_ALIGNMENT = 8
_ARROW_REFUSES = (
    pa.ArrowException,
    ValueError,
    KeyError,
    TypeError,
    OSError,
    OverflowError,
    MemoryError,
)
"""Errors that Arrow raises for invalid bytes."""


def schema_message(schema: pa.Schema) -> bytes:
    """Return a schema as an encapsulated IPC message (FlightInfo.schema, SchemaResult.schema)."""
    return bytes(memoryview(schema.serialize()))


def schema_data(schema: pa.Schema, app_metadata: Bytes = b"") -> FlightData:
    """Return the first message of a stream."""
    return FlightData(split_message(schema_message(schema))[0], None, app_metadata)


def batch_parts(batch: pa.RecordBatch) -> tuple[memoryview, memoryview]:
    """Return (header, body) of a batch; the body is copied once, into one buffer.

    Raises:
        InvalidArgument: the batch has a dictionary-encoded column; cast it to its plain type first.
    """
    _refuse_dictionaries(batch.schema)
    return split_message(memoryview(batch.serialize()))


def batch_data(batch: pa.RecordBatch, app_metadata: Bytes = b"") -> FlightData:
    """Return a batch as a message of a DoGet or DoPut stream.

    Raises:
        InvalidArgument: as `batch_parts`.
    """
    header, body = batch_parts(batch)
    return FlightData(header, body, app_metadata)


def batch_message(batch: pa.RecordBatch) -> bytes:
    """Return a batch as one encapsulated IPC message, without its schema.

    Raises:
        InvalidArgument: as `batch_parts`.
    """
    _refuse_dictionaries(batch.schema)
    return bytes(memoryview(batch.serialize()))


def join_message(header: Bytes, body: Bytes | None) -> bytes:
    """Return the encapsulated message of a header and a body; see `batch_message`."""
    padding = -len(header) % _ALIGNMENT
    length = (len(header) + padding).to_bytes(4, "little")
    return b"".join(
        (_CONTINUATION, length, header, bytes(padding), body if body is not None else b"")
    )


def split_message(message: Bytes) -> tuple[memoryview, memoryview]:
    """Return views of the header and the body of an encapsulated message.

    Raises:
        InvalidArgument: the prefix does not match the message's length.
    """
    view = memoryview(message).cast("B")
    length = int.from_bytes(view[4:_PREFIX_BYTES], "little")
    if len(view) < _PREFIX_BYTES or view[:4] != _CONTINUATION or length > len(view) - _PREFIX_BYTES:
        raise InvalidArgument(f"{len(view)} bytes are not an encapsulated Arrow message")
    return view[_PREFIX_BYTES : _PREFIX_BYTES + length], view[_PREFIX_BYTES + length :]


def read_schema(header: Bytes) -> pa.Schema:
    """Return the schema in the first message of a stream.

    Raises:
        InvalidArgument: the bytes are no schema, or one with dictionary-encoded columns.
    """
    if read_header(header).kind != SCHEMA:
        raise InvalidArgument("the first message of a stream must carry an Arrow schema")
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(join_message(header, None)))
        tuple(schema.names)  # fails early if a name is not UTF-8
    except _ARROW_REFUSES as err:
        raise InvalidArgument(f"an Arrow schema cannot be read: {err}") from err
    _refuse_dictionaries(schema)
    return schema


def read_batch(
    schema: pa.Schema, header: Bytes, body: Bytes | None, *, trusted: bool = False
) -> pa.RecordBatch:
    """Return the batch in a header and a body, as views of the body where its address is aligned.

    Args:
        schema: Arrow schema of the batch; the message does not contain it.
        header: the message's flatbuffer.
        body: the message's buffers; None is empty.
        trusted: skip the validation of values: the bytes were validated before and have a checksum (nyala's
            log and files).

    Raises:
        InvalidArgument: invalid bytes, buffers that do not match the schema, a dictionary batch, a compressed
            body; the values have not been read.
    """
    facts = read_header(header)
    if facts.kind == DICTIONARY_BATCH:
        raise InvalidArgument("dictionary-encoded columns are not accepted; cast to the plain type")
    if facts.kind != RECORD_BATCH:
        raise InvalidArgument(f"an Arrow message of kind {facts.kind} instead of a record batch")
    if facts.compressed:
        raise InvalidArgument("compressed Arrow bodies are not accepted; send them uncompressed")
    given = 0 if body is None else len(body)
    if facts.body_bytes != given:
        raise InvalidArgument(
            f"an Arrow message declares a body of {facts.body_bytes} bytes and has {given}"
        )
    try:
        message = pa.ipc.read_message(pa.PythonFile(_Pieces(header, _aligned(body)), "r"))
        batch = pa.ipc.read_record_batch(message, schema)
        if not trusted:
            batch.validate(full=True)
    except _ARROW_REFUSES as err:
        raise InvalidArgument(
            f"a batch is damaged or does not fit ({', '.join(map(str, schema.types))}): {err}"
        ) from err
    return batch


def read_message(schema: pa.Schema, message: Bytes, *, trusted: bool = False) -> pa.RecordBatch:
    """Return the batch in one encapsulated message; the inverse of `batch_message`.

    Args:
        schema: Arrow schema of the batch.
        message: the message.
        trusted: skip the validation: the bytes were produced by this process or have a checksum.

    Raises:
        InvalidArgument: as `read_batch`.
    """
    header, body = split_message(message)
    return read_batch(schema, header, body, trusted=trusted)


def _refuse_dictionaries(schema: pa.Schema) -> None:
    for field in schema:
        if _has_dictionary(field.type):
            raise InvalidArgument(
                f"column {field.name!r} is dictionary-encoded ({field.type}); send its plain type"
            )


def _has_dictionary(kind: pa.DataType) -> bool:
    return pa.types.is_dictionary(kind) or any(
        _has_dictionary(kind.field(n).type) for n in range(kind.num_fields)
    )


def _aligned(body: Bytes | None) -> Bytes:
    """Return the body at an aligned address: numpy and numba use views of it later."""
    if body is None:
        return b""
    buffer = pa.py_buffer(body)
    if buffer.address % _ALIGNMENT == 0:
        return body
    copy = pa.allocate_buffer(len(body))
    memoryview(copy).cast("B")[:] = memoryview(body).cast("B")
    return copy


class _Pieces:
    """File over (prefix, header, body) from which Arrow reads each part without a copy.

    The prefix contains the header's length; Arrow then reads exactly these parts in order.
    """

    closed = False

    def __init__(self, header: Bytes, body: Bytes) -> None:
        length = len(header).to_bytes(4, "little")
        self._pieces = [body, header, length, _CONTINUATION]

    def read(self, size: int) -> Bytes:
        if size == 0:
            return b""
        piece = self._pieces.pop() if self._pieces else b""
        if len(piece) != size:
            raise ValueError(f"Arrow asks for {size} bytes where a piece has {len(piece)}")
        return piece

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        return
