"""Five faults of each kind on three machines under load; `./run soak faults` makes thirty of each."""

import pytest

from tests.faults.support import sandbox

LIMIT_S = 580


def inject(kind: str, seed: int, count: int = 5) -> None:
    arguments = (kind, "--count", count, "--seed", seed)
    print(sandbox.run("tests.faults.run", *arguments, timeout_s=LIMIT_S))


@pytest.mark.row("S4.2")
@pytest.mark.timeout(LIMIT_S + 10)
def test_power_cuts_of_one_machine_and_of_all_lose_nothing_acknowledged():
    inject("power", 41)


@pytest.mark.row("S4.29")
@pytest.mark.timeout(LIMIT_S + 10)
def test_kills_and_stops_of_masters_and_tablet_servers_lose_nothing_and_read_nothing_stale():
    inject("storm", 42)


@pytest.mark.row("S1.24", "S4.29")
@pytest.mark.timeout(LIMIT_S + 10)
def test_partitions_stop_no_tablet_and_no_cut_off_server_raises_its_term():
    inject("partition", 43, 6)  # one of each way


@pytest.mark.row("S4.14")
@pytest.mark.timeout(LIMIT_S + 10)
def test_errors_of_a_disk_end_one_server_cleanly_and_a_slow_one_ends_nothing():
    inject("disk", 44)
