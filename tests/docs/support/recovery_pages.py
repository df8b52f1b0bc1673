"""Tables for the tests of the recovery pages."""

import pyarrow as pa

import nyala
from nyala.testing import MiniCluster

ROWS = 200
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.float64())])


def some_table(cluster: MiniCluster, replicas: int = 3) -> None:
    """Create and fill the table that the pages use."""
    with cluster.connect() as client:
        partition = nyala.Partition(hash=[nyala.Hash(["id"], 2)])
        client.create_table(
            "metrics", SCHEMA, primary_key=["id"], partition=partition, replicas=replicas
        )
    fill(cluster)


def fill(cluster: MiniCluster) -> None:
    """Write all rows with their first values."""
    with cluster.connect() as client:
        client.table("metrics").upsert(pa.table({"id": range(ROWS), "value": [0.5] * ROWS}))
