"""Digests of a journal's content: a sum over all that is valid, independent of the changes that led to it.

Sums are taken modulo 2**64 where they are shown (`folded`); a member that differs from the others has other
content.
"""

import hashlib
import struct

_IDS = struct.Struct("<QQ")


def entry_digest(log: int, entry_id: int, data: bytes) -> int:
    """Return the digest of an entry.

    Args:
        log: id of the change that created the log.
        entry_id: id of the entry.
        data: its data.
    """
    return _digest(b"entry", _IDS.pack(log, entry_id) + data)


def log_digest(name: str, created: int, last: int) -> int:
    """Return the digest of an empty log.

    Args:
        name: name of the log.
        created: id of the change that created it.
        last: id of its last change.
    """
    return _digest(b"log", _IDS.pack(created, last) + name.encode())


def key_digest(key: str, version: int, value: bytes) -> int:
    """Return the digest of a key.

    Args:
        key: the key.
        version: id of the change that set it.
        value: its value.
    """
    name = key.encode()
    return _digest(b"key", _IDS.pack(version, len(name)) + name + value)


def folded(total: int) -> int:
    """Return a sum of digests modulo 2**64."""
    return total & 0xFFFF_FFFF_FFFF_FFFF


def _digest(kind: bytes, data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=kind).digest(), "little")
