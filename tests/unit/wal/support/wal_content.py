"""Content of segments, for the tests of segments and of collections."""

from nyala.wal.segments.format import RECORD_HEADER_BYTES
from tests.unit.wal.support.wal_harness import durable, entry

RECORD = RECORD_HEADER_BYTES + 100


def content(machine, sequence):
    return bytes(machine.disk.names.get(f"/d/wal/{sequence:010d}.wal").content)


def damage(machine, payload):
    """Flip a bit of the first entry with this payload."""
    for name in sorted(machine.disk.names.seen["/d/wal"]):
        path = f"/d/wal/{name}"
        at = machine.disk.names.get(path).content.find(payload)
        if at >= 0:
            machine.disk.flip_bit(path, at + 1)
            return
    raise AssertionError(f"{payload!r} is not in the log")


async def fill(wal, group, first, last):
    for i in range(first, last + 1):
        await durable(wal, group, [entry(i, bytes(100))])
