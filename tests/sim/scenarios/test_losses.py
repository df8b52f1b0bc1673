"""Losses of disks while their server is down: no acknowledged write is lost, all members become complete."""

from collections import Counter

import pytest

from tests.sim.faults.disk_losses import IMAGE, KINDS, Lost, lose

SEEDS = range(100, 114)
_FOUND: dict[int, Lost] = {}


def found(seed: int) -> Lost:
    if seed not in _FOUND:
        _FOUND[seed] = lose(seed)
    return _FOUND[seed]


@pytest.mark.parametrize("seed", SEEDS)
def test_server_with_lost_data_recovers_or_is_failed(seed):
    assert found(seed).kinds


@pytest.mark.full
def test_every_kind_of_loss_occurs_with_both_outcomes():
    kinds = Counter(kind for seed in SEEDS for kind in found(seed).kinds)
    assert set(kinds) == {IMAGE, *KINDS}
    assert any(found(seed).failed for seed in SEEDS)
    assert any(found(seed).caught_up for seed in SEEDS)
