"""Five faults of each kind on three machines under load; `./run soak faults` makes thirty of each."""

import pytest

from tests.faults.support import sandbox
from tests.waiting import within

pytestmark = pytest.mark.full


def inject(kind: str, seed: int, count: int = 5, *more: str) -> None:
    arguments = (kind, "--count", count, "--seed", seed, *more)
    print(sandbox.run("tests.faults.run", *arguments, timeout_s=within(580)))


@pytest.mark.row("S4.2")
@pytest.mark.timeout(590)
def test_power_failures_of_one_machine_and_all_lose_no_acknowledged_write():
    inject("power", 41)


@pytest.mark.row("S4.29")
@pytest.mark.timeout(590)
def test_kills_and_stops_lose_nothing_and_cause_no_stale_read():
    inject("kills", 42)


@pytest.mark.row("S1.24", "S4.29")
@pytest.mark.timeout(590)
def test_partitions_stop_no_tablet_and_raise_no_term_of_partitioned_server():
    inject("partition", 43, 6)  # one of each way


@pytest.mark.row("S4.14")
@pytest.mark.timeout(590)
def test_disk_errors_stop_one_server_cleanly_and_slow_disk_stops_none():
    inject("disk", 44)


@pytest.mark.row("A23")
@pytest.mark.timeout(590)
def test_cluster_with_certificates_on_three_machines_survives_kills():
    """Addresses that are not loopback, every connection with TLS."""
    inject("kills", 45, 4, "--secure")
