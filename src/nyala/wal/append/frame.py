"""Layout of drafts as the buffers of one vectored write."""

from collections.abc import Sequence

from nyala.env.files import Buffer
from nyala.wal.segments.format import (
    RECORD_HEADER_BYTES,
    LogPosition,
    RecordDraft,
    pack_record_header,
)

JOIN_BYTES = 64 << 10
"""Size in bytes up to which smaller buffers are joined, so that a round has few of them."""


def frame(
    drafts: Sequence[RecordDraft], at: LogPosition, synced: LogPosition
) -> tuple[list[Buffer], int]:
    """Assign positions to drafts and return the buffers of one write.

    Args:
        drafts: in their order.
        at: position of the first.
        synced: position up to which the log is known to be durable.

    Returns:
        The buffers to write, and the offset after them.
    """
    buffers: list[Buffer] = []
    small: list[bytes] = []
    size = 0
    offset = at.offset
    for one in drafts:
        small.append(pack_record_header(one, LogPosition(at.sequence, offset), synced))
        offset += RECORD_HEADER_BYTES + len(one.payload)
        size += RECORD_HEADER_BYTES
        if len(one.payload) < JOIN_BYTES:
            small.append(one.payload)
            size += len(one.payload)
        if len(one.payload) >= JOIN_BYTES or size >= JOIN_BYTES:
            buffers.append(b"".join(small))
            small, size = [], 0
        if len(one.payload) >= JOIN_BYTES:
            buffers.append(one.payload)
    if small:
        buffers.append(b"".join(small))
    assert offset < 1 << 32, f"segment {at.sequence} would pass 4 GiB"
    return buffers, offset
