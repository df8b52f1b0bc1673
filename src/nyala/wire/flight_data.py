"""Hand-written encoder and decoder of FlightData, the message that carries Arrow: protobuf would copy it.

Decoding returns views of the input; headers and bodies are not parsed here (see `wire/flight.py`). The layout
is Arrow's (`proto/flight.proto`); docs/internals/formats-wire.md describes it.
"""

from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa
from google.protobuf.message import DecodeError

from nyala.common.errors import InvalidArgument
from nyala.wire.proto.flight_pb2 import FlightDescriptor

Bytes: TypeAlias = bytes | memoryview | pa.Buffer

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_DESCRIPTOR, _HEADER, _METADATA, _BODY = 1, 2, 3, 1000
_MAX_VARINT_BYTES = 10
_ALIGNMENT = 8
_MAX_FIELDS = 64
"""Maximum fields of a message: FlightData has four, a newer client may send more, a hostile one thousands."""


def varint(number: int) -> bytes:
    """Return a number as a protobuf varint."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_TAG_DESCRIPTOR = varint(_DESCRIPTOR << 3 | _LENGTH)
_TAG_HEADER = varint(_HEADER << 3 | _LENGTH)
_TAG_METADATA = varint(_METADATA << 3 | _LENGTH)
_TAG_BODY = varint(_BODY << 3 | _LENGTH)


@dataclass(frozen=True, slots=True)
class FlightData:
    """One message of a DoGet or DoPut stream.

    Attributes:
        header: flatbuffer of an IPC message (a schema or a record batch); empty: metadata only.
        body: buffers of a record batch; None where the message has none.
        app_metadata: a message of `nyala.proto`, encoded.
        descriptor: only in the first message of a DoPut.
    """

    header: Bytes = b""
    body: Bytes | None = None
    app_metadata: Bytes = b""
    descriptor: FlightDescriptor | None = None


def encode(data: FlightData) -> bytes:
    """Return the protobuf bytes of a FlightData; the body is copied once, into them.

    Padding aligns the body to 8 bytes, so that the receiver can use its buffers in place. In a message with
    metadata the padding is a metadata field before the real one (of a repeated field the last one counts), so
    that header and body of a retry are the same bytes, independent of the length of its metadata. Otherwise
    it is zeros after the header, which are harmless at the end of a flatbuffer.
    """
    parts: list[Bytes] = []
    if data.descriptor is not None:
        descriptor = data.descriptor.SerializeToString()
        parts += (_TAG_DESCRIPTOR, varint(len(descriptor)), descriptor)
    if len(data.app_metadata):
        parts += (_TAG_METADATA, varint(len(data.app_metadata)), data.app_metadata)
    tail: list[Bytes] = []
    if data.body is not None:
        tail += (_TAG_BODY, varint(len(data.body)))
    if len(data.header):
        size = len(data.header)
        if data.body is not None:
            others = sum(map(len, parts)) + sum(map(len, tail))
            if len(data.app_metadata):
                parts.insert(0, _fill(others + len(_TAG_HEADER) + len(varint(size)) + size))
            else:
                size += _padding(others, size)
        parts += (_TAG_HEADER, varint(size), data.header, bytes(size - len(data.header)))
    parts += tail
    if data.body is not None:
        parts.append(data.body)
    return b"".join(parts)


def split(value: object) -> tuple[object, Bytes | None]:
    """Return a FlightData without its body, and the body; other messages are returned unchanged."""
    if isinstance(value, FlightData) and value.body is not None:
        return replace(value, body=None), value.body
    return value, None


def join(value: object, body: Bytes | None) -> object:
    """Return the message with its body; the inverse of `split`.

    Raises:
        InvalidArgument: a body for a message type without one.
    """
    if body is None:
        return value
    if not isinstance(value, FlightData):
        raise InvalidArgument(f"{len(body)} bytes of Arrow data came with a {type(value).__name__}")
    return replace(value, body=body)


def _fill(size: int) -> bytes:
    """Return a metadata field that pads `size` bytes to a multiple of 8; empty if they are one."""
    missing = -size % _ALIGNMENT
    if missing < len(_TAG_METADATA) + 1 and missing:
        missing += _ALIGNMENT
    content = bytes(max(0, missing - len(_TAG_METADATA) - 1))
    return _TAG_METADATA + varint(len(content)) + content if missing else b""


def _padding(others: int, header: int) -> int:
    """Return the number of zero bytes after a header that align the body to 8 bytes."""
    for padding in range(_ALIGNMENT):
        size = header + padding
        if (others + len(_TAG_HEADER) + len(varint(size)) + size) % _ALIGNMENT == 0:
            return padding
    return 0  # the length's own length grew in between: the receiver copies this one


def decode(raw: bytes) -> FlightData:
    """Decode a FlightData without copying: header, metadata and body are views of `raw`.

    Unknown fields are skipped; of a repeated field the last one counts.

    Raises:
        InvalidArgument: the bytes are not a FlightData.
    """
    view = memoryview(raw)
    found: dict[int, memoryview] = {}
    at, end = 0, len(view)
    for _ in range(_MAX_FIELDS):
        if at == end:
            break
        tag, at = _read_varint(view, at)
        number, kind = tag >> 3, tag & 7
        at, value = _read_value(view, at, kind)
        if number in (_DESCRIPTOR, _HEADER, _METADATA, _BODY):
            if value is None:
                raise _malformed(f"field {number} has wire type {kind} instead of {_LENGTH}", at)
            found[number] = value
        elif number == 0:
            raise _malformed("field number 0", at)
    else:
        raise _malformed(f"more than {_MAX_FIELDS} fields", at)
    empty = view[:0]
    descriptor = found.get(_DESCRIPTOR)
    return FlightData(
        found.get(_HEADER, empty),
        found.get(_BODY),
        found.get(_METADATA, empty),
        None if descriptor is None else _descriptor(descriptor),
    )


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    result = 0
    for shift in range(_MAX_VARINT_BYTES):
        if at >= len(view):
            raise _malformed("it ends within a number", at)
        byte = view[at]
        at += 1
        result |= (byte & 127) << (7 * shift)
        if byte < 128:
            return result, at
    raise _malformed(f"a number is longer than {_MAX_VARINT_BYTES} bytes", at)


def _read_value(view: memoryview, at: int, kind: int) -> tuple[int, memoryview | None]:
    if kind == _LENGTH:
        length, at = _read_varint(view, at)
        if length > len(view) - at:
            raise _malformed(f"a field declares {length} bytes and {len(view) - at} remain", at)
        return at + length, view[at : at + length]
    if kind == _VARINT:
        return _read_varint(view, at)[1], None
    width = {_FIXED64: 8, _FIXED32: 4}.get(kind)
    if width is None:
        raise _malformed(f"unknown wire type {kind}", at)
    if width > len(view) - at:
        raise _malformed("it ends within a number", at)
    return at + width, None


def _descriptor(raw: memoryview) -> FlightDescriptor:
    try:
        return FlightDescriptor.FromString(bytes(raw))
    except DecodeError as err:
        raise InvalidArgument(f"the descriptor of a FlightData cannot be read: {err}") from err


def _malformed(why: str, at: int) -> InvalidArgument:
    return InvalidArgument(
        f"a message is not a FlightData: {why} (at byte {at}); the message was ignored"
    )
