"""Requests of small writes for the tests of combining."""

import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable, TabletLocation
from nyala.common.ids import TableId, TabletId
from nyala.common.partitioning.partition import HashLevel, PartitionSchema, partitions
from nyala.common.schema import from_arrow

SCHEMA = from_arrow(pa.schema([("k", pa.int64()), ("v", pa.int64())]), ["k"])


def table(buckets: int = 1) -> OpenTable:
    cut = PartitionSchema(() if buckets == 1 else (HashLevel(SCHEMA.key_ids, buckets, 7),), (), ())
    made = OpenTable(TableId("a" * 32), "t", SCHEMA, cut, 3, {})
    made.tablets = [
        TabletLocation(TabletId(f"{n:032x}"), p) for n, p in enumerate(partitions(SCHEMA, cut))
    ]
    return made


def rows(*keys: int | None, columns: tuple[str, ...] = ("k", "v")) -> pa.RecordBatch:
    arrays = [pa.array(keys, pa.int64()) for _ in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
