"""Power cuts of a real file system under the real log: one process, many cuts."""

import pytest

from tests.faults.support import sandbox
from tests.waiting import within

pytestmark = pytest.mark.full


@pytest.mark.row("S4.2", "S4.14")
@pytest.mark.timeout(310)
def test_durable_log_records_survive_power_failures_and_torn_tail_is_not_damage():
    print(sandbox.run("tests.faults.wal_cuts", "--cuts", 12, "--seed", 2, timeout_s=within(300)))


@pytest.mark.row("S4.3")
@pytest.mark.timeout(310)
def test_without_sync_power_failure_loses_a_tail_without_hole():
    """The test also fails if nothing was lost, since the power failure then had no effect."""
    command = ("--cuts", 12, "--seed", 4, "--no-sync")
    print(sandbox.run("tests.faults.wal_cuts", *command, timeout_s=within(300)))
