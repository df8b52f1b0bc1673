"""Leaders that are killed or stopped under a stream into and out of a table: no row is lost or doubled."""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

import nyala
from tests.cluster.streams.conftest import TABLE

ROWS, BATCH, WIDTH = 40_000, 1_000, 1_000
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("text", pa.string())])


def batches(at: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
    """Yield all rows, in an order other than that of their keys."""
    keys = np.random.default_rng(5).permutation(ROWS)
    for number, first in enumerate(range(0, ROWS, BATCH)):
        at(number)
        some = pa.array(keys[first : first + BATCH])
        texts = [f"{key:0{WIDTH}}" for key in some.to_pylist()]
        yield pa.record_batch([some, pa.array(texts)], schema=SCHEMA)


def make(client: nyala.Client) -> nyala.Table:
    hashed = nyala.Partition(hash=[nyala.Hash(["k"], 2)])
    return client.create_table(TABLE, SCHEMA, ["k"], hashed)


def test_stream_into_a_table_whose_leader_fails_writes_each_row_once(cluster, fault):
    with cluster.connect() as client:
        table, before = make(client), client.now()
        seen: list[int] = []
        try:
            done = table.insert(batches(fault), progress=seen.append)
            changes = table.changes(before, net=False, columns=["k"]).to_arrow()
        finally:
            client.drop_table(TABLE)
    assert (done.rows, done.errors.num_rows, done.next_row) == (ROWS, 0, ROWS)
    assert seen == list(range(BATCH, ROWS + 1, BATCH))
    assert set(changes.column("_op").to_pylist()) == {"insert"}
    assert sorted(changes.column("k").to_pylist()) == list(range(ROWS))


def test_ordered_stream_out_of_a_table_whose_leader_fails_has_each_row_once(cluster, fault):
    with nyala.connect(cluster.masters, scan_batch_rows=500, scan_ahead_bytes=100_000) as client:
        table = make(client)
        found: list[int] = []
        try:
            assert table.insert(batches(lambda _: None)).rows == ROWS
            for number, batch in enumerate(table.scan(order=True).to_batches()):
                fault(number)
                found += batch.column("k").to_pylist()
        finally:
            client.drop_table(TABLE)
    assert found == list(range(ROWS))


def test_unordered_stream_out_of_a_table_whose_leader_fails_doubles_no_row(cluster, fault):
    """It ends with an error if rows are missing; then the scan is repeated."""
    with nyala.connect(cluster.masters, scan_batch_rows=500, scan_ahead_bytes=100_000) as client:
        table = make(client)
        found: list[int] = []
        broken = False
        try:
            assert table.insert(batches(lambda _: None)).rows == ROWS
            scan = table.scan()
            try:
                for number, batch in enumerate(scan.to_batches()):
                    fault(number)
                    found += batch.column("k").to_pylist()
            except nyala.errors.Unavailable:
                broken = True
            again = scan.to_arrow().column("k").to_pylist()
        finally:
            client.drop_table(TABLE)
    assert len(set(found)) == len(found)
    assert broken or len(found) == ROWS
    assert sorted(again) == list(range(ROWS))
