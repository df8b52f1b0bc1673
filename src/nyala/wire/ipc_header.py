"""Header of an Arrow IPC message, read from its flatbuffer before Arrow allocates memory for it.

Arrow decompresses a body when it reads a batch, and 12 kB of zstd can expand to 400 MB; therefore compressed
bodies are detected here first. Only fixed fields are read, with bounds checks. The layout is Arrow's
Message.fbs.
"""

import struct
from dataclasses import dataclass

from nyala.common.errors import InvalidArgument

SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
"""Arrow's numbers of the message kinds that nyala tells apart."""

_U16 = struct.Struct("<H")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_MESSAGE_KIND, _MESSAGE_CONTENT, _MESSAGE_BODY = 1, 2, 3
_BATCH_LENGTH, _BATCH_COMPRESSION = 0, 3


@dataclass(frozen=True, slots=True)
class IpcHeader:
    """Fixed fields of one message.

    Attributes:
        kind: SCHEMA, DICTIONARY_BATCH, RECORD_BATCH, or another number of Arrow's.
        body_bytes: length of its body.
        rows: number of rows of a record batch; else 0.
        compressed: True if the body of a record batch is compressed.
    """

    kind: int
    body_bytes: int
    rows: int = 0
    compressed: bool = False


def read_header(header: bytes | memoryview) -> IpcHeader:
    """Read the fixed fields of an IPC message from its flatbuffer.

    Raises:
        InvalidArgument: not such a flatbuffer, or a negative length.
    """
    try:
        return _read(memoryview(header).cast("B"))
    except (struct.error, IndexError) as err:
        raise InvalidArgument(f"the header of an Arrow message cannot be read: {err}") from err


def _read(view: memoryview) -> IpcHeader:
    message = _U32.unpack_from(view, 0)[0]
    kind_at = _field(view, message, _MESSAGE_KIND)
    kind = view[kind_at] if kind_at else 0
    body_at = _field(view, message, _MESSAGE_BODY)
    body_bytes = _I64.unpack_from(view, body_at)[0] if body_at else 0
    content_at = _field(view, message, _MESSAGE_CONTENT)
    rows, compressed = 0, False
    if kind == RECORD_BATCH:
        if not content_at:
            raise InvalidArgument("the header of an Arrow message has no record batch")
        batch = content_at + _U32.unpack_from(view, content_at)[0]
        rows_at = _field(view, batch, _BATCH_LENGTH)
        rows = _I64.unpack_from(view, rows_at)[0] if rows_at else 0
        compressed = bool(_field(view, batch, _BATCH_COMPRESSION))
    if body_bytes < 0 or rows < 0:
        raise InvalidArgument(
            f"an Arrow message of {rows} rows and {body_bytes} bytes is impossible"
        )
    return IpcHeader(kind, body_bytes, rows, compressed)


def _field(view: memoryview, table: int, number: int) -> int:
    """Return the position of a table's field, or 0 if the table does not have it."""
    vtable = table - _I32.unpack_from(view, table)[0]
    if vtable < 0:
        raise struct.error(f"a table of fields stands at {vtable}")
    size = _U16.unpack_from(view, vtable)[0]
    slot = 4 + 2 * number
    if slot + 2 > size:
        return 0
    offset = _U16.unpack_from(view, vtable + slot)[0]
    return table + offset if offset else 0
