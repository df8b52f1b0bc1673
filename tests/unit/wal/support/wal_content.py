"""What the tests of segments and of collecting ask of a log."""

from nyala.wal.format import RECORD_HEADER_BYTES
from tests.unit.wal.support.wal_harness import durable, entry

RECORD = RECORD_HEADER_BYTES + 100


def content(machine, sequence):
    return bytes(machine.disk.names.get(f"/d/wal/{sequence:010d}.wal").content)


async def fill(wal, group, first, last):
    for i in range(first, last + 1):
        await durable(wal, group, [entry(i, bytes(100))])
