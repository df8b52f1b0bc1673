"""kill -9 at random moments of a write workload: nothing acknowledged is lost or takes effect twice."""

import pytest

from tests.cluster.kill_cycles import run

pytestmark = pytest.mark.full

CYCLES = 14
"""About 20 kills: some cycles kill a master and a tablet server, and three follow the last one."""


@pytest.mark.timeout(590)
def test_kills_lose_and_duplicate_no_write():
    outcome = run(CYCLES, seed=2013, say=print)
    print(outcome)
    assert outcome.kills >= 20
