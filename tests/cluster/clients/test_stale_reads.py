"""Stale reads on real processes: followers serve them, also while their leader is stopped."""

import pyarrow as pa
import pytest

from tests.cluster.support import leading
from tests.waiting import wait_until

pytestmark = pytest.mark.full

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def test_followers_serve_stale_reads_while_their_leader_is_stopped(cluster):
    with cluster.connect() as client:
        table = client.create_table("stale", SCHEMA, ["k"])
        table.upsert([{"k": 1, "v": 1}]).raise_for_errors()
        scan = table.scan(mode="stale", max_age_ms=600_000)
        wait_until(lambda: all(scan.count() for _ in range(16)), "every follower has it")
        leader = leading.leader(cluster, "stale")
        cluster.pause(leader)
        try:
            assert scan.to_arrow().to_pylist() == [{"k": 1, "v": 1}]
            assert 0 < scan.age_ms < 600_000
            assert scan.count() == 1
            assert [t.to_arrow_batches()[0].num_rows for t in scan.tokens()] == [1]
        finally:
            cluster.resume(leader)
