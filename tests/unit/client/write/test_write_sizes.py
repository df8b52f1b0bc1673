"""Writes are split to the servers' limits; a row above them is refused before anything is written."""

from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientOptions
from nyala.client.read.read_spec import ReadSpec
from nyala.client.results import PartlyWritten
from nyala.client.write import request_size
from nyala.client.write.batcher import Batcher, BatchLimits, cut_batch
from nyala.client.write.sequencer import Sequencer
from nyala.client.write.upload import MAX_WINDOWS
from nyala.common.errors import TooLarge
from nyala.common.ids import TableId
from nyala.common.partitioning.partition import HashLevel, PartitionSchema
from nyala.common.schema import from_arrow
from nyala.wire import flight
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import OPTIONS, SimCluster
from tests.sim.world.loop import SimLoop, run

KIB = 1 << 10
WIDE = from_arrow(
    pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string()), ("w", pa.binary())]),
    ["k"],
)
SMALL = msgspec.structs.replace(OPTIONS, write_max_bytes=8 * KIB)


def rows(sizes, first=0):
    keys = range(first, first + len(sizes))
    names = ["k", "v", "w"]
    return pa.record_batch(
        [pa.array(keys), ["x" * n for n in sizes], [b"y"] * len(sizes)], names=names
    )


def opened(limit: int) -> OpenTable:
    made = OpenTable(TableId("a" * 32), "t", WIDE, PartitionSchema(), 3, {})
    made.write_max_bytes = limit
    return made


# ---- through real servers ----------------------------------------------------------------------------


def scenario(fn):
    def test() -> None:
        async def main(loop: SimLoop) -> None:
            cluster = SimCluster(loop, seed=5, options=SMALL, masters=1)
            await cluster.start()
            core = cluster.client(ClientOptions(timeout_ms=20_000))
            process = cluster.clients[-1]
            table: Any = await cluster.run(
                process, core.ddl.create_table, "t", WIDE, None, 3, dict[str, str]()
            )

            async def write(batch):
                return await core.session.write(
                    table, pb.UPSERT, batch, all_or_nothing=False, timeout_ms=20_000
                )

            async def count():
                tokens = await core.reader.tokens(table, ReadSpec(), 20_000)
                return sum(
                    b.num_rows for part in await core.reader.collect_all(tokens) for b in part
                )

            async def work():
                await fn(core, table, write, count)

            await cluster.run(process, work)

        run(main, max_time_s=900)

    test.__doc__ = fn.__doc__
    return test


@scenario
async def test_write_above_server_limit_is_split_and_complete(core, table, write, count):
    assert table.write_max_bytes == 8 * KIB
    assert (await write(rows([100] * 3_000))).rows == 3_000
    assert (await write(rows([6 * KIB] * 20 + [1] * 100, first=10_000))).rows == 120
    assert await count() == 3_120


@scenario
async def test_row_above_server_limit_is_refused_before_writing(core, table, write, count):
    """Regression: a thousand rows were written before the one that was too large raised TooLarge."""
    with pytest.raises(
        TooLarge, match=r"row 1000 has \d+ bytes.*write_max_bytes \(8192\)"
    ) as caught:
        await write(rows([100] * 1_000 + [9 * KIB] + [100] * 5))
    assert caught.value.details["row"] == "1000"
    assert await count() == 0


@scenario
async def test_combined_small_writes_stay_below_limit(core, table, write, count):
    deliver, sizes = Sequencer.deliver, []

    async def noted(self, table, tablet, op, batch, *more):
        sizes.append(batch.nbytes)
        return await deliver(self, table, tablet, op, batch, *more)

    with patch.object(Sequencer, "deliver", noted):
        tasks = [core.env.tasks.spawn(write(rows([500], first=n)), "w") for n in range(40)]
        for task in tasks:
            assert (await task).rows == 1
    assert await count() == 40
    assert 2 * 500 < max(sizes) < 8 * KIB, (
        "some writes shared a request, and none was refused and split"
    )


@scenario
async def test_oversized_row_in_stream_reports_rows_written_before(core, table, write, count):
    upload = await core.session.begin(table, pb.UPSERT, all_or_nothing=False, timeout_ms=20_000)
    await upload.take(rows([100] * 300))
    with pytest.raises(PartlyWritten, match="row 302 has") as caught:
        await upload.take(rows([1, 1, 9 * KIB], first=300))
    assert caught.value.rows == 300 == await count()


# ---- computed sizes ---------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    limit=st.sampled_from((4 * KIB, 16 * KIB, 64 * KIB)),
    wanted=st.sampled_from((KIB, 16 * KIB, 1 << 20)),
    sizes=st.lists(st.sampled_from((0, 10, 500, 3_000, 15_000)), min_size=1, max_size=120),
)
def test_encoded_batches_stay_within_server_limit(limit, wanted, sizes):
    table = opened(limit)
    batch = rows(sizes)
    refused = request_size.refusal(table, batch, 0)
    largest = max(sizes)
    if largest > limit:
        assert refused is not None
        assert refused.details["row"] == str(sizes.index(largest))
        return
    assert refused is None
    limits = BatchLimits(100, request_size.max_row_bytes(table, 3, wanted))
    pieces = cut_batch(batch, limits, request_size.max_row_bytes(table, 3, 2 * wanted))
    assert pa.Table.from_batches([p for _, p in pieces]).to_pylist() == batch.to_pylist()
    assert [at for at, _ in pieces] == np.cumsum([0, *(p.num_rows for _, p in pieces)])[
        :-1
    ].tolist()
    for _, piece in pieces:
        data = flight.batch_data(piece, b"")
        size = len(data.header) + len(data.body or b"")
        assert size <= limit or piece.num_rows == 1


def test_batch_limit_includes_metadata_of_many_columns():
    names = [f"c{n}" for n in range(1_000)]
    batch = pa.record_batch([pa.array(["x" * 7] * 200)] * 1_000, names=names)
    table = opened(1 << 20)
    limits = BatchLimits(10_000, request_size.max_row_bytes(table, 1_000, 1 << 20))
    for _, piece in cut_batch(batch, limits, request_size.max_row_bytes(table, 1_000, 2 << 20)):
        data = flight.batch_data(piece, b"")
        assert len(data.header) + len(data.body or b"") <= 1 << 20


def test_servers_without_stated_limit_get_client_batch_size():
    table = opened(0)
    assert request_size.max_row_bytes(table, 3, 12_345) == 12_345
    assert request_size.refusal(table, rows([1 << 20]), 0) is None


@pytest.mark.parametrize(("tablets", "least"), [(1, 8_000), (8, 30_000), (1_000, 30_000)])
def test_windows_of_a_write_stay_within_its_memory(tablets, least):
    table, batch = opened(0), rows([100] * 20_000)
    if tablets > 1:
        hashed = HashLevel(table.schema.key_ids, tablets, 7)
        table.partition_schema = PartitionSchema(hash=(hashed,))
    requests: Any = None
    batcher = Batcher(requests, requests, requests, BatchLimits(ahead_bytes=16 << 20))
    made = batcher.window_rows(table, batch)
    size = batch.nbytes / batch.num_rows * made * (MAX_WINDOWS + 1)
    assert made >= least
    assert size <= 16 << 20
