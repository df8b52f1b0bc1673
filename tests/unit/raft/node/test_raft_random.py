"""A group under a scheduler with loss, duplication, reordering, slow disks and crashes, from one seed.

The harness checks every invariant after each step; here reads are checked too, and at the end everything
heals and the group must agree, lead and commit again.
"""

from collections import Counter

import pytest

from tests.unit.raft.support.raft_random import RandomRun

SEEDS = range(24)
FAULTS = ("lost", "doubled", "late", "crash", "torn", "held", "partition")


_seen: Counter[str] = Counter()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedules_violate_no_invariant(seed):
    random_run = RandomRun(seed)
    random_run.run()
    random_run.seen["committed"] = len(random_run.cluster.committed)
    random_run.seen["leaders"] = len(random_run.cluster.leaders)
    random_run.heal()
    _seen.update(random_run.seen)


def test_every_fault_kind_occurs():
    if not _seen:
        for seed in SEEDS:
            test_random_schedules_violate_no_invariant(seed)
    for kind in (*FAULTS, "read", "transfer", "change", "copy"):
        assert _seen[kind] > 0, (kind, _seen)
    assert _seen["committed"] > 20 * len(SEEDS), _seen
    assert _seen["leaders"] > 2 * len(SEEDS), _seen
    print(dict(_seen))
