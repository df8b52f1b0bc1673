"""The pages about rescue, command by command, on real processes."""

from pathlib import Path

import pyarrow as pa

import nyala
from nyala.testing import MiniCluster
from tests.docs.pages import FOLDER, run_page

OPERATE = Path(__file__).parents[2] / "docs" / "operate"
ROWS = 200


def some_table(cluster: MiniCluster, replicas: int = 3) -> None:
    """Make the table that the pages speak of, and fill it."""
    schema = pa.schema([pa.field("id", "int64", nullable=False), ("value", "float64")])
    with cluster.connect() as client:
        partition = nyala.Partition(hash=[nyala.Hash(["id"], 2)])
        table = client.create_table("metrics", schema, primary_key=["id"], partition=partition, replicas=replicas)
        table.upsert(pa.table({"id": range(ROWS), "value": [0.5] * ROWS}))


def rows(cluster: MiniCluster) -> int:
    """How many rows the table has."""
    with cluster.connect() as client:
        return client.table("metrics").count()


def test_tablets_that_lost_their_majority_go_on_with_what_is_left(tmp_path):
    with MiniCluster(1, 3, dir=str(tmp_path / FOLDER)) as cluster:
        some_table(cluster)
        run_page(OPERATE / "lost-majority.md", cluster)
        assert rows(cluster) == ROWS
