"""A log on a disk of limited size."""

from nyala.common.errors import Throttled
from tests.unit.wal.support.wal_harness import (
    A,
    durable,
    entry,
)

SEGMENT = 4000
RESERVE = 50_000


async def fill(wal, first, last, size=400):
    for i in range(first, last + 1):
        await durable(wal, A, [entry(i, bytes(size))])


async def until_refused(wal, loop, first):
    """Append until that is refused; return the last index that was taken, and the refusal."""
    index = first
    while index < first + 500:
        try:
            await fill(wal, index, index)
        except Throttled as err:
            return index - 1, err
        index += 1
        await loop.delay(10_000)
    raise AssertionError("never refused")
