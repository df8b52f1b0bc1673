"""Frame format of the peer port: a 16-byte header, the fields of a `PeerBatch`, then its messages.

No I/O. docs/internals/formats-wire.md describes the bytes; only this module encodes and decodes them, and
`raft_bytes.py` the messages. A frame is validated completely (magic, version, length, CRC32C, ranges) before
any of it is used.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

import google_crc32c
import numpy as np

from nyala.common.errors import BadChecksum, Corrupt
from nyala.common.ids import ServerUuid, TabletId
from nyala.raft.messages import PeerBatch
from nyala.wire.framing import FrameFormat
from nyala.wire.raft_bytes import MAX_NUMBER, pack, unpack

__all__ = [
    "HEADER",
    "MAX_NUMBER",
    "FrameKind",
    "PeerFrame",
    "decode_frame",
    "encode_frame",
    "frame_parts",
    "payload_bytes",
]  # fmt: skip

FORMAT = FrameFormat(b"NYPF", 3, "peer port", "a frame")
HEADER = struct.Struct("<4sBBHII")  # magic, version, kind, log_ms, payload bytes, CRC32C
_LARGE_BYTES = 16 << 10
_COVERED = HEADER.size - 4
"""Header bytes that the CRC covers, which are those before it; it then covers the payload."""
_BATCH = struct.Struct("<4Q5BI")
"""hlc, wall clock, incarnation, stopped count; lengths of sender, receiver, cluster id, address; number of
stopped groups; number of messages.
"""


class FrameKind(IntEnum):
    """HELLO opens a connection and identifies both ends; BATCH carries messages."""

    HELLO = 1
    BATCH = 2


@dataclass(frozen=True, slots=True)
class PeerFrame:
    """One decoded frame.

    Attributes:
        kind: kind of the frame.
        cluster_id: cluster id of the sender; empty: unknown.
        batch: the messages; none in a HELLO.
    """

    kind: FrameKind
    cluster_id: str
    batch: PeerBatch


def encode_frame(batch: PeerBatch, cluster_id: str, kind: FrameKind = FrameKind.BATCH) -> bytes:
    """Return the bytes of a frame.

    Args:
        batch: sender, receiver and messages.
        cluster_id: cluster id of the sender; empty: unknown.
        kind: kind of the frame.
    """
    return b"".join(frame_parts(batch, cluster_id, kind))


def frame_parts(
    batch: PeerBatch, cluster_id: str, kind: FrameKind = FrameKind.BATCH
) -> list[bytes]:
    """Return a frame as a list of buffers; the payloads of large entries are not copied.

    Args:
        batch: sender, receiver and messages.
        cluster_id: cluster id of the sender; empty: unknown.
        kind: kind of the frame.
    """
    sender, to = batch.sender.encode(), batch.to.encode()
    cluster, address = cluster_id.encode(), batch.address.encode()
    parts = [
        _BATCH.pack(
            batch.hlc, batch.wall_us, batch.incarnation, batch.stopped_count,
            len(sender), len(to), len(cluster), len(address), len(batch.stopped_groups), len(batch.messages),
        ),
        sender, to, cluster, address,
    ]  # fmt: skip
    for group in batch.stopped_groups:
        name = group.encode()
        parts += (bytes((len(name),)), name)
    for group, message in batch.messages:
        pack(parts, group, message)
    parts = _joined(parts)
    header = HEADER.pack(FORMAT.magic, FORMAT.version, kind, batch.log_ms, sum(map(len, parts)), 0)
    header = header[:_COVERED]
    crc = google_crc32c.value(header)
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    parts[0] = b"".join((header, crc.to_bytes(4, "little"), parts[0]))
    return parts


def _joined(parts: list[bytes]) -> list[bytes]:
    """Join adjacent small buffers."""
    if sum(map(len, parts)) < _LARGE_BYTES or max(map(len, parts)) < _LARGE_BYTES:
        return [b"".join(parts)]
    made: list[bytes] = []
    since = 0
    for at, part in enumerate(parts):
        if len(part) >= _LARGE_BYTES:
            made += (b"".join(parts[since:at]), part)
            since = at + 1
    return [*made, b"".join(parts[since:])] if since < len(parts) else made


def payload_bytes(header: bytes | bytearray | memoryview, max_bytes: int) -> int:
    """Return the number of bytes after a frame's header.

    Raises:
        Corrupt: not a frame header, or a length over the limit.
        BadVersion: an unsupported frame version.
    """
    magic, version, _, _, length, _ = HEADER.unpack_from(header)
    FORMAT.check(magic, version)
    FORMAT.check_size(length, max_bytes)
    return int(length)


def decode_frame(raw: bytes | memoryview) -> PeerFrame:
    """Decode `raw`, exactly one header and its payload; keeps no view of it.

    Raises:
        Corrupt: damaged or malformed, or its subclasses BadChecksum and BadVersion; the message says where.
    """
    if len(raw) < HEADER.size:
        raise Corrupt(f"a frame of {len(raw)} bytes is shorter than its header")
    length = payload_bytes(raw, len(raw))
    _, _, kind, log_ms, _, crc = HEADER.unpack_from(raw)
    if length != len(raw) - HEADER.size:
        raise Corrupt(f"a frame claims {length} bytes and has {len(raw) - HEADER.size}")
    payload = np.frombuffer(raw, np.uint8, offset=HEADER.size)  # the checksum takes no other view
    if google_crc32c.extend(google_crc32c.value(bytes(raw[:_COVERED])), payload) != crc:
        raise BadChecksum(f"a frame of {len(raw)} bytes fails its checksum")
    try:
        cluster_id, batch, end = _batch(raw, log_ms)
        if end != len(raw):
            raise ValueError(f"it has {len(raw)} bytes, and its content ends at {end}")
        return PeerFrame(FrameKind(kind), cluster_id, batch)
    except (struct.error, IndexError, ValueError) as err:
        raise Corrupt(f"a frame's payload is malformed: {err}") from err


def _batch(raw: bytes | memoryview, log_ms: int) -> tuple[str, PeerBatch, int]:
    """Return the cluster id and the batch of a frame, and the position of the end according to their lengths.

    Any hybrid time is accepted: the receiver's clock bounds it, and its error names the sender.
    """
    hlc, wall_us, incarnation, stopped_count, *sizes, names, count = _BATCH.unpack_from(
        raw, HEADER.size
    )
    at, texts, stopped, messages = HEADER.size + _BATCH.size, [], [], []
    for size in sizes:
        at += size
        texts.append(str(raw[at - size : at], "utf-8"))
    sender, to = ServerUuid(texts[0]), ServerUuid(texts[1])
    for _ in range(names):
        size = raw[at]
        at += 1 + size
        stopped.append(TabletId(str(raw[at - size : at], "utf-8")))
    for _ in range(count):
        group, message, at = unpack(raw, at, sender, to)
        messages.append((group, message))
    batch = PeerBatch(
        sender, to, hlc, tuple(messages), wall_us, incarnation, stopped_count, tuple(stopped), log_ms,
        texts[3],
    )  # fmt: skip
    return texts[2], batch, at
