"""A stream larger than the memory of its process is written, read and followed in bounded memory."""

import pytest

from nyala.testing import MiniCluster
from tests.cluster.stream_memory import run

pytestmark = pytest.mark.full

LIMIT_MB = 300


@pytest.mark.timeout(600)
def test_streams_of_200_mb_are_written_and_read_in_300_mb_and_40_mb_followed_twice_too():
    with MiniCluster(1, 1) as cluster:
        peak = run(cluster.masters, 200, seed=3)
        following = run(cluster.masters, 40, seed=4, follows=True)
    assert peak < LIMIT_MB, f"the process took {peak} MB"
    assert following < LIMIT_MB, f"the process that followed took {following} MB"
