"""Jobs between clusters with certificate authorities of their own."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nyala.spark
from nyala.spark import MergeCounts
from nyala.spark.jobs import checksum, compare, copy
from nyala.testing import MiniCluster

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture(scope="module")
def other():
    with MiniCluster(1, 1, secure=True) as made:
        yield made


@pytest.fixture
def source(cluster, other):
    """A table of the other cluster."""
    first, second = (Path(c.dir, "certs/ca.crt").read_bytes() for c in (cluster, other))
    assert first != second
    with other.connect() as there:
        made = there.create_table("of the other", SCHEMA, ["k"], replicas=1)
        made.upsert([{"k": k, "v": "new"} for k in range(2, 6)])
        yield made
        there.drop_table("of the other")


def test_merge_reads_one_cluster_and_writes_another_one(spark, cluster, client, other, source):
    target = client.create_table("merged here", SCHEMA, ["k"], replicas=1)
    target.upsert([{"k": k, "v": "old"} for k in range(4)])
    frame = nyala.spark.read(spark, source.name, masters=other.masters)
    done = nyala.spark.merge(
        frame, target.name, when_not_matched_by_source="delete", masters=cluster.masters
    )
    assert done == MergeCounts(updated=2, inserted=2, deleted=2)
    assert target.scan(order=True).to_arrow() == source.scan(order=True).to_arrow()
    client.drop_table(target.name)


@pytest.mark.parametrize("follow", [False, True])
def test_copy_to_another_cluster_is_equal_there(
    spark, cluster, client, other, source, tmp_path, follow
):
    how: dict[str, Any] = {}
    if follow:
        how = {"follow": True, "once": True, "checkpoint": str(tmp_path / "state")}
    here, there = {"masters": cluster.masters}, {"masters": other.masters}
    for n in range(1 + follow):
        source.upsert([{"k": 10 + n, "v": "later"}])
        done = copy(spark, source.name, "copied", **there, to_masters=cluster.masters, **how)
        assert done.created == (n == 0)
        found = client.table("copied").scan(order=True).to_arrow()
        assert found == source.scan(order=True).to_arrow()
    assert compare(spark, source.name, "copied", **there, other_masters=cluster.masters).equal
    sums = [checksum(spark, source.name, **there), checksum(spark, "copied", **here)]
    assert sums[0].checksum == sums[1].checksum
    client.drop_table("copied")
