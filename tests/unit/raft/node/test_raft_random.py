"""A group under a scheduler with loss, duplication, reordering, slow disks and crashes, from one seed.

The harness checks every invariant after each step; here reads are checked too, and at the end everything
heals and the group must agree, lead and commit again.
"""

from collections import Counter

import pytest

from tests.enough import FULL, enough
from tests.unit.raft.support.raft_random import RandomRun

SEEDS = range(24 if FULL else 8)
FAULTS = ("lost", "doubled", "late", "crash", "torn", "held", "partition")


@pytest.mark.parametrize("first", range(0, len(SEEDS), 8))
def test_random_schedules_violate_no_invariant(first):
    seen: Counter[str] = Counter()
    for seed in SEEDS[first : first + 8]:
        random_run = RandomRun(seed)
        random_run.run()
        seen.update(random_run.seen)
        seen["committed"] += len(random_run.cluster.committed)
        seen["leaders"] += len(random_run.cluster.leaders)
        random_run.heal()
    for kind in (*FAULTS, "read", "transfer", "change", "copy", "committed", "leaders"):
        enough(seen[kind] > 0, f"{kind}: {seen}")
