"""Transfers between accounts by transactions: no read at any time, at any server, has a wrong balance."""

import pytest

from nyala.tablet.write import apply_transactions
from tests.enough import enough
from tests.sim.faults.plan import Swarm
from tests.sim.transactions.bank import run_bank
from tests.sim.transactions.changes import ChangeRates

QUIET = Swarm()
FAULTS = Swarm(
    loss_rate=0.01,
    duplicate_rate=0.03,
    straggler_rate=0.02,
    crash_s=2,
    down_s=0.4,
    power_cut_rate=0.5,
    partition_s=3,
    partition_length_s=0.7,
    pause_s=4,
    pause_length_s=0.5,
    skew_ms=300,
    slow_rate=0.02,
    transfer_s=1,
)


def test_transfers_without_faults_keep_every_balance():
    history = run_bank(1, QUIET, seconds=2)
    print(history.counts)
    enough(len(history.commits) > 10, f"{len(history.commits)} commits")


@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.full) for s in range(1, 9)])
def test_transfers_under_crashes_and_leader_changes_keep_every_balance(seed: int):
    history = run_bank(seed, FAULTS, seconds=12)
    print(len(history.commits), len(history.reads), history.counts)
    enough(len(history.commits) > 20, f"{len(history.commits)} commits")
    enough(len(history.reads) > 100, f"{len(history.reads)} reads")


@pytest.mark.full
@pytest.mark.parametrize("seed", range(21, 27))
def test_transfers_keep_every_balance_while_replicas_move_and_columns_come_and_go(
    seed: int, monkeypatch: pytest.MonkeyPatch
):
    """Each staged batch is a step of its own, so that copies, flushes and reads come between them."""
    monkeypatch.setattr(apply_transactions, "FIRST_BYTES", 0)
    monkeypatch.setattr(apply_transactions, "PIECE_BYTES", 0)
    history = run_bank(seed, FAULTS, seconds=15, rates=ChangeRates(move_s=2, alter_s=2))
    print(len(history.commits), len(history.reads), history.counts)
    enough(len(history.commits) > 20, f"{len(history.commits)} commits")
    enough(history.counts["moved"] and history.counts["altered"], "moves, and changes of columns")
