"""The merge of feeds in order of time: complete positions, parts of large changes."""

import asyncio
import random
from unittest.mock import patch

import pyarrow as pa
import pytest

from nyala.client.feed import time_merge
from nyala.client.feed.time_merge import TimedStream, in_time_order
from tests.selected import first

SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("_timestamp", pa.int64())])


def batches_of(chance, rows):
    """Return rows as batches of any size, some of them empty."""
    found = []
    while rows:
        size = chance.randrange(4)
        some, rows = rows[:size], rows[size:]
        columns = [pa.array([r[i] for r in some], pa.int64()) for i in (1, 0)]
        found.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    return found


def merged(streams, since, until):
    async def items(batches):
        for batch in batches:
            yield batch

    async def run():
        timed = [TimedStream(items(s), SCHEMA) for s in streams]
        found = [x async for x in in_time_order(timed, SCHEMA, since, until)]
        return [
            (b.column("_timestamp").to_pylist(), b.column("k").to_pylist(), t) for b, t in found
        ]

    return asyncio.run(run())


@pytest.mark.parametrize("part_rows", first([3, 1_000_000]))
def test_every_position_is_complete_and_large_changes_come_in_parts(part_rows):
    for seed in range(100):
        chance = random.Random(seed)
        tablets = [
            sorted((chance.randrange(11, 11 + chance.choice([3, 30])), key * 10 + tablet)
                   for key in range(chance.choice([0, 1, 5, 40])))
            for tablet in range(chance.randrange(1, 5))
        ]  # fmt: skip
        with patch.object(time_merge, "PART_ROWS", part_rows):
            found = merged([batches_of(chance, t) for t in tablets], 10, 50)
        every = sorted(row for t in tablets for row in t)
        seen: list[tuple[int, int]] = []
        position = 10
        for times, keys, through in found:
            assert through >= position
            seen += zip(times, keys, strict=True)
            done = [r for r in every if r[0] <= through]
            assert sorted(seen)[: len(done)] == done, "all up to the position was returned"
            if through > position:
                assert len(seen) == len(done), "and nothing after it"
            else:
                assert (part_rows, len(set(times))) == (3, 1)
            position = through
        assert position == 50
        assert sorted(seen) == every
        assert [t for t, _ in seen] == [t for t, _ in every]


def test_merge_of_long_feeds_holds_two_batches_of_each_and_takes_nothing_from_the_pool_of_arrow():
    """Arrow's pool keeps what is released, so a process that follows would grow."""
    tablets, count, rows = 3, 30, 2_000
    times = [
        [pa.array(range(n * rows, (n + 1) * rows), pa.int64()) for n in range(count)]
        for _ in range(tablets)
    ]
    held, most = 0, 0

    async def items(columns):
        nonlocal held, most
        for column in columns:
            held += rows
            most = max(most, held)
            yield pa.RecordBatch.from_arrays([column, column], schema=SCHEMA)

    async def run():
        nonlocal held
        feeds = [TimedStream(items(columns), SCHEMA) for columns in times]
        async for batch, _ in in_time_order(feeds, SCHEMA, -1, count * rows):
            held -= batch.num_rows

    pool = pa.default_memory_pool()
    before = pool.total_bytes_allocated()
    asyncio.run(run())
    assert held == 0
    assert most <= 2 * tablets * rows
    followed = tablets * count * rows * 16
    assert pool.total_bytes_allocated() - before < followed / 10
