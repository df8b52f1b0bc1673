"""Tables and rows for the tests of large writes."""

import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable, TabletLocation
from nyala.common.ids import TableId, TabletId
from nyala.common.partitioning.partition import HashLevel, PartitionSchema, partitions
from nyala.common.schema import from_arrow

SCHEMA = from_arrow(pa.schema([("k", pa.int64()), ("v", pa.int64())]), ["k"])
HASHED = PartitionSchema(hash=(HashLevel(SCHEMA.key_ids, 4, 7),))


def opened(cut: PartitionSchema = HASHED) -> OpenTable:
    made = OpenTable(TableId("a" * 32), "t", SCHEMA, cut, 3, {})
    made.tablets = [
        TabletLocation(TabletId(f"{n:032x}"), p) for n, p in enumerate(partitions(SCHEMA, cut))
    ]
    return made
