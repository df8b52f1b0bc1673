"""Read leases on real processes: a leader that was stopped beyond its lease returns nothing stale."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from nyala.testing import MiniCluster
from tests.cluster.support.leading import leader

pytestmark = pytest.mark.full

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
ROUNDS = 6
LOOK_UPS = 8


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(1, 3) as made:
        yield made


def test_look_ups_that_wait_at_a_stopped_leader_see_the_writes_at_the_next_one(cluster):
    """The look-ups are in the socket of the old leader, whose lease was valid when it was stopped."""
    with cluster.connect() as writer, cluster.connect() as reader:
        table = writer.create_table("t", SCHEMA, primary_key=["k"], replicas=3)
        value = 0
        table.upsert([{"k": 1, "v": value}])
        with ThreadPoolExecutor(LOOK_UPS) as threads:
            for _ in range(ROUNDS):
                led, known = leader(cluster, "t"), reader.table("t")
                assert known.get({"k": 1}) == {"k": 1, "v": value}, (
                    "it knows the leader, which has a lease"
                )
                cluster.pause(led)
                try:
                    for _ in range(3):
                        value += 1
                        table.upsert([{"k": 1, "v": value}])  # at the next leader
                    begun = threading.Barrier(LOOK_UPS + 1)

                    def look_up(known=known, begun=begun):
                        begun.wait()
                        return known.get({"k": 1})["v"]

                    found = [threads.submit(look_up) for _ in range(LOOK_UPS)]
                    begun.wait()
                finally:
                    cluster.resume(led)
                assert [f.result() for f in found] == [value] * LOOK_UPS
