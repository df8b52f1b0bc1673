"""A large write: cut into windows and batches, each row sent once, rows of one tablet in their order."""

import asyncio
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from nyala.client.results import PartlyWritten
from nyala.client.write import batcher
from nyala.client.write.batcher import Batcher, BatchLimits
from nyala.common.errors import RangesChanged, Throttled, Unavailable
from nyala.common.ids import TabletId
from nyala.common.partitioning.partition import KeyRange, PartitionSchema, locate
from nyala.env.clock import HybridClock
from nyala.env.env import system_env
from nyala.wire.channels import GrpcRpc
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.client.support.client_bulk import HASHED, SCHEMA, opened

LIMITS = BatchLimits(batch_rows=50)


def numbered(keys):
    keys = np.asarray(keys, np.int64)
    return pa.record_batch([pa.array(keys), pa.array(np.arange(len(keys)))], names=["k", "v"])


async def one_turn():
    """Let the loop run everything else that is ready."""
    turn = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turn.set_result, None)
    await turn


class Sink:
    """Receives batches in place of servers; each is answered after a random number of loop turns."""

    def __init__(self, fail_at=None, error=None, bad_row=None):
        self.got: dict[TabletId, list[list[int]]] = {}
        self.under_way: Counter[TabletId] = Counter()
        self.most = 0
        self._fail_at, self._error, self._bad_row = fail_at, error, bad_row
        self._draw = np.random.default_rng(3)

    async def deliver(self, table, tablet, op, piece, whole, attempts):
        self.under_way[tablet.id] += 1
        assert self.under_way[tablet.id] == 1, "two batches of one write to a tablet are in flight"
        self.most = max(self.most, self.under_way.total())
        received = self.got.setdefault(tablet.id, [])
        received.append(piece.column("v").to_pylist())
        for _ in range(int(self._draw.integers(1, 20))):
            await one_turn()
        self.under_way[tablet.id] -= 1
        if self._error is not None and sum(map(len, self.got.values())) >= self._fail_at:
            raise self._error
        result = pb.WriteResult(rows=piece.num_rows, timestamp=sum(map(len, self.got.values())))
        if self._bad_row in received[-1]:
            result.rows -= 1
            result.row_errors.add(
                row=received[-1].index(self._bad_row), code="not_found", message="m"
            )
        return result


def write(sink, batch, table=None, **more):
    async def scenario():
        env = system_env(rpc := GrpcRpc())
        try:
            bulk = Batcher(env, sink, HybridClock(env.clock), LIMITS)
            return await bulk.write(
                table or opened(), pb.UPSERT, batch, more.get("whole", False), 60_000
            )
        finally:
            await env.tasks.close()
            await rpc.close()

    return asyncio.run(scenario())


def test_bulk_write_sends_every_row_once_in_order_with_tablets_in_parallel():
    sink = Sink()
    rows = numbered(np.random.default_rng(1).integers(0, 60, 3_000))  # keys repeat
    written = write(sink, rows)
    sent = [v for pieces in sink.got.values() for piece in pieces for v in piece]
    assert sorted(sent) == list(range(3_000))
    assert written.rows == 3_000
    assert not written.errors
    for pieces in sink.got.values():
        assert [len(p) <= LIMITS.batch_rows for p in pieces] == [True] * len(pieces)
        in_order = [v for p in pieces for v in p]
        assert in_order == sorted(in_order)
    assert sink.most == 4


@pytest.mark.row("A3")
def test_bulk_row_errors_have_positions_in_whole_write():
    keys = list(range(1_000))
    batch = pa.record_batch(
        [pa.array([None if k in (3, 700) else k for k in keys]), pa.array(keys)], names=["k", "v"]
    )
    written = write(Sink(bad_row=801), batch)
    assert [(row, code) for row, code, _ in written.errors] == [
        (3, "null_key"), (700, "null_key"), (801, "not_found"),
    ]  # fmt: skip
    assert written.rows == 997


def test_row_outside_all_ranges_is_reported_and_others_are_sent():
    cut = PartitionSchema(
        hash=HASHED.hash,
        range_column_ids=SCHEMA.key_ids,
        ranges=(KeyRange(b"", b"\x80" + bytes(7)),),
    )
    written = write(Sink(), numbered([-5, 4, -7, 9]), opened(cut))
    assert [(row, code) for row, code, _ in written.errors] == [
        (1, "no_partition"), (3, "no_partition"),
    ]  # fmt: skip
    assert written.rows == 2


def test_all_or_nothing_write_with_unroutable_row_sends_nothing():
    sink = Sink()
    batch = pa.record_batch(
        [pa.array([*range(999), None]), pa.array(range(1_000))], names=["k", "v"]
    )
    written = write(sink, batch, whole=True)
    assert written.rows == 0
    assert [row for row, _, _ in written.errors] == list(range(1_000))
    assert Counter(code for _, code, _ in written.errors) == {"null_key": 1, "voided": 999}
    assert "row 999 of the same request failed (null_key" in written.errors[0][2]
    assert not sink.got


class Altered(Sink):
    """Drops the range of keys from 0 on as the first batch arrives; the tablet is another one then."""

    async def deliver(self, table, tablet, op, piece, whole, attempts):
        if not table.partition_schema.ranges:
            negative = KeyRange(b"", b"\x80" + bytes(7))
            cut = PartitionSchema(range_column_ids=SCHEMA.key_ids, ranges=(negative,))
            table.update_ranges(opened(cut))
            raise RangesChanged("newer ranges")
        return await super().deliver(table, tablet, op, piece, whole, attempts)


@pytest.mark.parametrize("whole", [False, True])
def test_row_whose_range_was_dropped_meanwhile_voids_the_rows_sent_with_it(whole):
    sink = Altered()
    written = write(sink, numbered([-5, 4, -7]), opened(PartitionSchema()), whole=whole)
    errors = [(row, code) for row, code, _ in written.errors]
    if whole:
        assert errors == [(0, "voided"), (1, "no_partition"), (2, "voided")]
        assert "row 1 of the same request failed (no_partition" in written.errors[0][2]
    else:
        assert errors == [(1, "no_partition")]
    assert written.rows == len([v for pieces in sink.got.values() for p in pieces for v in p])
    assert written.rows == (0 if whole else 2)


def test_failed_tablet_gets_no_more_batches_and_no_window_starts():
    sink = Sink(fail_at=40, error=Unavailable("gone"))
    with pytest.raises(PartlyWritten) as partly:
        write(sink, numbered(np.arange(20_000)))
    assert isinstance(partly.value.__cause__, Unavailable)
    counts = [len(pieces) for pieces in sink.got.values()]
    assert max(counts) <= 20, "most of the 100 batches of each tablet are not sent"
    sink = Sink(fail_at=1, error=Throttled("full"))
    with pytest.raises(Throttled):
        write(sink, numbered(np.arange(20_000)))
    assert [len(pieces) for pieces in sink.got.values()] == [1, 1, 1, 1]


def test_rows_are_grouped_by_one_state_of_the_table(monkeypatch):
    table = opened()
    tablets = list(table.tablets)

    def altered(*args):  # another call looks the ranges up while rows are grouped in a lane
        found = locate(*args)
        table.tablets = []
        return found

    monkeypatch.setattr(batcher, "locate", altered)
    sink = Sink()
    assert write(sink, numbered(range(40)), table).rows == 40
    assert set(sink.got) == {t.id for t in tablets}
