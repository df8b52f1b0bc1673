"""Header before each operation's payload: client, sequence number, and retention of the result.

Rules: the only module that packs or unpacks the header (bytes: docs/internals/replica.md).
"""

import hashlib
import struct
from dataclasses import dataclass
from functools import lru_cache

import google_crc32c

from nyala.common.errors import Corrupt, InvalidArgument, newer_or_damaged
from nyala.common.hybrid_time import MAX_HYBRID_TIME

VERSION = 4
CLIENT_ID_BYTES = 16
MAX_SEQUENCE = (1 << 63) - 1
_HEADER = struct.Struct("<B16sQQII")
_SINCE = struct.Struct("<Q")
_TABLE = struct.Struct("<I")
_OWNER = struct.Struct("<Q")
OLD_HEADER_BYTES = _HEADER.size
"""Bytes of the header of version 1, without `since`; version 2 has `since` and no `table_kib`."""
HEADER_BYTES = OLD_HEADER_BYTES + _SINCE.size + _TABLE.size + _OWNER.size
_SIZES = {
    1: OLD_HEADER_BYTES,
    2: OLD_HEADER_BYTES + _SINCE.size,
    3: HEADER_BYTES - _OWNER.size,
    VERSION: HEADER_BYTES,
}
NO_OWNER, SERVERS = 0, 1
"""Owners of sessions that are no users: a server without certificates knows none; other servers."""


@dataclass(frozen=True, slots=True)
class Header:
    """Client, sequence number and retention of one operation.

    Attributes:
        client_id: 16 bytes, chosen at random by the client.
        sequence: number of the operation among those of the client on this group.
        first_outstanding: the client has the results of everything below it; at most `sequence`.
        ttl_s: how long the result is kept, by entry stamps.
        crc: CRC32C of the payload, which distinguishes a retry from another operation.
        since: hybrid time before which no attempt was executed, the same for all attempts; 0: not known;
            None: written by a release without it.
        table_kib: maximum size of the group's session table, in KiB; 0: only its constants apply.
        owner: who sent the operation: NO_OWNER, SERVERS, or a user as `owner_of` numbers them.
    """

    client_id: bytes
    sequence: int
    first_outstanding: int
    ttl_s: int
    crc: int
    since: int | None = None
    table_kib: int = 0
    owner: int = NO_OWNER


@lru_cache(maxsize=1024)  # each write asks
def owner_of(user: str) -> int:
    """Return the number of a user, by which sessions know their owner: 64 bits of a hash of the name."""
    found = int.from_bytes(hashlib.sha256(user.encode()).digest()[: _OWNER.size], "little")
    return max(found, SERVERS + 1)


def check(client_id: bytes, sequence: int, first_outstanding: int, since: int = 0) -> None:
    """Check the arguments of a client's write.

    Args:
        client_id: 16 bytes.
        sequence: sequence number of the operation.
        first_outstanding: at most `sequence`.
        since: hybrid time; 0: not known.

    Raises:
        InvalidArgument: the id is not 16 bytes, or the numbers are out of range.
    """
    if len(client_id) != CLIENT_ID_BYTES:
        raise InvalidArgument(f"a client id has 16 bytes, not {len(client_id)}; draw it at random")
    if not 0 <= first_outstanding <= sequence <= MAX_SEQUENCE:
        raise InvalidArgument(
            f"sequence {sequence} with first outstanding {first_outstanding}: they must be "
            f"0 <= first outstanding <= sequence <= {MAX_SEQUENCE}"
        )
    if not 0 <= since <= MAX_HYBRID_TIME:
        raise InvalidArgument(f"since={since} is no hybrid time; give one from client.now()")


def crc_of(payload: bytes) -> int:
    """Return the checksum that distinguishes a retry from another operation."""
    return int(google_crc32c.value(payload))


def wrap(
    payload: bytes,
    client_id: bytes,
    sequence: int,
    first_outstanding: int,
    ttl_s: int,
    since: int = 0,
    table_kib: int = 0,
    owner: int = NO_OWNER,
) -> bytes:
    """Return the payload of an entry: header and operation. The arguments have been checked.

    Args:
        payload: payload of the operation.
        client_id: see `Header`, as those that follow.
        sequence: sequence number of the operation.
        first_outstanding: first sequence number of the client that has no answer yet.
        ttl_s: retention of the result, in seconds.
        since: hybrid time; 0: not known.
        table_kib: limit of the group's table of sessions, in KiB; 0: none.
        owner: see `Header`; without one the header has version 3, which earlier releases read.
    """
    version = 3 if owner == NO_OWNER else VERSION
    head = _HEADER.pack(version, client_id, sequence, first_outstanding, ttl_s, crc_of(payload))
    head += _SINCE.pack(since) + _TABLE.pack(table_kib)
    return head + (b"" if owner == NO_OWNER else _OWNER.pack(owner)) + payload


def unwrap(wrapped: bytes) -> tuple[Header, bytes]:
    """Return header and payload of a replicated operation.

    Raises:
        BadVersion: a newer leader wrote it, or it is damaged. Corrupt: it is too short for an operation.
    """
    size = _SIZES.get(wrapped[0], OLD_HEADER_BYTES) if wrapped else OLD_HEADER_BYTES
    if len(wrapped) < size:
        raise Corrupt(f"an operation of {len(wrapped)} bytes is too short for its header")
    version, client_id, sequence, first, ttl_s, crc = _HEADER.unpack_from(wrapped)
    if version not in _SIZES:
        raise newer_or_damaged("the header of a replicated operation", version, VERSION)
    since = None if version == 1 else _SINCE.unpack_from(wrapped, OLD_HEADER_BYTES)[0]
    table = _TABLE.unpack_from(wrapped, _SIZES[2])[0] if version >= 3 else 0
    owner = _OWNER.unpack_from(wrapped, _SIZES[3])[0] if version == VERSION else NO_OWNER
    return Header(client_id, sequence, first, ttl_s, crc, since, table, owner), wrapped[size:]
