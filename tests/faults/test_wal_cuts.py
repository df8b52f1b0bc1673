"""Power cuts of a real file system under the real log: one process, many cuts."""

import pytest

from tests.faults.support import sandbox


@pytest.mark.row("S4.2", "S4.14")
@pytest.mark.timeout(310)
def test_what_the_log_called_durable_outlives_power_cuts_and_no_torn_tail_is_called_damage():
    print(sandbox.run("tests.faults.wal_cuts", "--cuts", 12, "--seed", 2, timeout_s=300))


@pytest.mark.row("S4.3")
@pytest.mark.timeout(310)
def test_without_syncs_a_power_cut_takes_a_tail_and_leaves_no_hole():
    """Fails as well when nothing was lost: then the cut would not be one."""
    command = ("--cuts", 12, "--seed", 4, "--no-sync")
    print(sandbox.run("tests.faults.wal_cuts", *command, timeout_s=300))
