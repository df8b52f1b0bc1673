"""Servers lost permanently under a swarm's faults: every tablet regains its replicas, no write is lost."""

import pytest

from tests.enough import enough
from tests.sim.faults.plan import Swarm
from tests.sim.runs.repair_run import REPLICAS, SIZES, TABLETS, run_losing, run_repair, run_resizing

CALM = Swarm()
ROUGH = Swarm(
    loss_rate=0.02, duplicate_rate=0.05, crash_s=6, down_s=1, power_cut_rate=0.7, in_operation_rate=0.3,
    partition_s=8, partition_length_s=1, pause_s=10, pause_length_s=0.5, leader_rate=0.5,
)  # fmt: skip


@pytest.mark.row("S1.1", "A9", "S3.7")
@pytest.mark.parametrize(("seed", "swarm"), [(1, CALM), (3, ROUGH)])
def test_permanently_dead_servers_are_replaced_without_loss(seed, swarm):
    run_repair(seed, swarm)


@pytest.mark.full
def test_replicas_of_dead_servers_are_rebuilt_on_others():
    """A dead server may have had no replica."""
    assert sum(run_repair(seed, ROUGH)[0] for seed in range(1, 7)) >= 10


@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        (1, ["log gone", "last bits turned", "segment gone"]),
        (3, ["folder gone", "bit turned"]),
        (4, ["file gone", "log gone"]),
    ],
)
def test_servers_with_lost_disk_data_get_complete_replicas(seed, kinds):
    rebuilt = run_losing(seed, kinds)
    enough(rebuilt, "a replica is rebuilt on another server")


@pytest.mark.parametrize(
    ("seed", "kinds"), [(1, ["log gone", "folder gone"]), (2, ["file gone", "bit turned"])]
)
def test_lost_disk_data_are_replaced_in_place_without_another_server(seed, kinds):
    assert run_losing(seed, kinds, REPLICAS) == 0


@pytest.mark.full
@pytest.mark.row("S1.49", "S1.51")
def test_witnesses_replace_permanently_dead_servers_and_receive_data():
    found = [run_repair(seed, ROUGH, options={"witness_first": "on"}) for seed in range(1, 5)]
    assert sum(rebuilt for rebuilt, _ in found) >= 6
    assert sum(stood_in for _, stood_in in found)


@pytest.mark.row("S1.3", "S1.29")
def test_replication_factor_changes_while_tables_are_written():
    assert run_resizing(2, ROUGH) == [SIZES[-1]] * TABLETS
