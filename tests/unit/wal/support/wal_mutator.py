"""Structured damage: a log's files as bytes, and mutations by a disk or by a faulty build.

A mutation is a kind and four numbers, so that hypothesis shrinks it; numbers are taken modulo the size of
their target.
"""

from collections.abc import Sequence

from nyala.wal.segments.format import RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, Record, crc32c
from nyala.wal.segments.scan import scan

Log = dict[str, bytes]
"""By name, the bytes of a log's segments."""
Mutation = tuple[str, int, int, int, int]

SECTOR_BYTES = 512
DISK = ("flip", "cut", "zero", "noise", "duplicate", "swap", "splice", "field")
"""Changes of bytes that checksums must detect."""
FORGERIES = ("field", "payload", "head")
"""The same with a correct checksum: not by a disk, but possible by a faulty build."""


def sequence(name: str) -> int:
    return int(name[:10])


def records(log: Log) -> list[tuple[str, Record]]:
    """All records of a whole log in their order, footers too."""
    found = []
    for name in sorted(log):
        one = scan(log[name], name, sequence(name))
        assert not one.gaps
        found += [(name, r) for r in one.records]
        found += [(name, one.footer)] if one.footer is not None else []
    return found


def mutated(log: Log, mutations: Sequence[Mutation]) -> Log:
    """Damage a log; checksums no longer match."""
    whole = records(log) if any(m[0] in ("splice", "field") for m in mutations) else []
    out = {name: bytearray(data) for name, data in log.items()}
    for mutation in mutations:
        _damage(out, whole, mutation)
    return {name: bytes(data) for name, data in out.items()}


def _damage(out: dict[str, bytearray], whole: list[tuple[str, Record]], one: Mutation) -> None:
    kind, a, b, c, d = one
    name = sorted(out)[a % len(out)]
    data = out[name]
    at = b % max(1, len(data))
    if kind == "flip" and data:
        data[at] ^= 1 << c % 8
    elif kind == "cut":
        del data[at:]
    elif kind == "zero":
        data[at : at + c % 2000] = bytes(len(data[at : at + c % 2000]))
    elif kind == "noise":
        data[at : at + c % 300] = bytes(
            (d + 7 * i) % 256 for i in range(len(data[at : at + c % 300]))
        )
    elif kind == "duplicate":  # a range of bytes is copied to another place
        part, to = bytes(data[at : at + c % 600]), d % max(1, len(data))
        data[to : to + len(part)] = part
    elif kind == "swap":
        sectors = max(1, len(data) // SECTOR_BYTES)
        i, j = (SECTOR_BYTES * (n % sectors) for n in (b, c))
        one_, two = (bytes(data[n : n + SECTOR_BYTES]) for n in (i, j))
        if len(one_) == len(two):
            data[i : i + SECTOR_BYTES], data[j : j + SECTOR_BYTES] = two, one_
    elif kind == "splice":  # a whole record over another one, perhaps of another segment
        (source, record), (target, place) = whole[b % len(whole)], whole[c % len(whole)]
        part = bytes(out[source][record.offset : record.offset + record.length])
        out[target][place.offset : place.offset + len(part)] = part
    elif kind == "field":  # any byte of a record's header, its length included
        target, record = whole[b % len(whole)]
        put = record.offset + c % RECORD_HEADER_BYTES
        if put < len(out[target]):
            out[target][put] = d % 256


def forged(log: Log, mutations: Sequence[Mutation]) -> Log:
    """Change a log, with correct checksums."""
    whole = records(log)
    out = {name: bytearray(data) for name, data in log.items()}
    for kind, a, b, c, d in mutations:
        name, record = whole[a % len(whole)]
        data, at = out[name], record.offset
        if kind == "head":
            data[b % (SEGMENT_HEADER_BYTES - 4)] = c % 256
            crc = crc32c(bytes(data[: SEGMENT_HEADER_BYTES - 4]))
            data[SEGMENT_HEADER_BYTES - 4 : SEGMENT_HEADER_BYTES] = crc.to_bytes(4, "little")
            continue
        start = at + RECORD_HEADER_BYTES
        if kind == "payload" and record.length > RECORD_HEADER_BYTES:
            data[start + b % (record.length - RECORD_HEADER_BYTES)] = c % 256
        elif kind == "field":
            field, width = ((12, 4), (32, 16), (48, 8), (56, 8), (64, 8), (72, 1), (73, 1))[b % 7]
            data[at + field : at + field + width] = _number(c, d, width)
        length = int.from_bytes(data[at + 12 : at + 16], "little")
        payload = bytes(data[start : start + length])
        data[at + 8 : at + 12] = crc32c(payload).to_bytes(4, "little")
        data[at + 4 : at + 8] = crc32c(bytes(data[at + 8 : start])).to_bytes(4, "little")
    return {name: bytes(data) for name, data in out.items()}


def _number(how: int, number: int, width: int) -> bytes:
    """Draw a length: 0, small, medium, or as large as fits."""
    value = (0, number % 8, number, (1 << 8 * width) - 1 - number % 3)[how % 4]
    return (value % (1 << 8 * width)).to_bytes(width, "little")
