"""Number of copies of a tablet to a server whose disk damages each, also if the leader master changes."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.common.options import Options
from nyala.master.repair.ordered_copies import OrderedCopies
from nyala.master.repair.retries import KEPT_WAITS, MAX_DOUBLINGS, Retries

WAIT_US = Options().member_failed_after_ms * 1000
ROUND_US = 1_000_000
HOUR = 3_600
SERVER = ServerUuid("b" * 32)


def copies(hours: int, changes: list[int]) -> list[int]:
    """Return the seconds at which a copy begins.

    Args:
        hours: time that is simulated; each copy fails within a round.
        changes: seconds at which another master becomes leader.
    """
    tablet: Any = SimpleNamespace(id="a" * 32, config_id=OpId(1, 1))
    retries = Retries(WAIT_US)
    begun: list[int] = []
    for second in range(hours * HOUR):
        now_us = second * ROUND_US
        if second in changes:
            retries = Retries(WAIT_US)
        if retries.may_evict(tablet, SERVER, now_us):
            retries.evicted(tablet, SERVER, now_us)
            begun.append(second)
            tablet.config_id = OpId(1, len(begun) + 1)
    return begun


def test_copies_of_one_leader_become_rare():
    wait_s = WAIT_US // 1_000_000
    begun = copies(6, [])
    assert begun[:4] == [0, wait_s, 3 * wait_s, 7 * wait_s]
    gaps = [b - a for a, b in pairwise(begun)]
    assert gaps == [wait_s << min(n, MAX_DOUBLINGS) for n in range(len(gaps))]


@pytest.mark.parametrize("count", [1, 3, 10, 60])
def test_each_change_of_leader_adds_a_bounded_number_of_copies(count):
    """The next leader begins with the shortest wait: one copy more, and one for each doubling at most."""
    changes = [600 + n * HOUR // count for n in range(count)]
    alone, begun = copies(2, []), copies(2, changes)
    assert len(begun) <= len(alone) + count * (MAX_DOUBLINGS + 1)
    for start in range(0, HOUR, 60):
        hour = [s for s in begun if start <= s < start + HOUR]
        changed = sum(start <= c < start + HOUR for c in changes)
        assert len(hour) <= (MAX_DOUBLINGS + 1) * (changed + 1) + 1


def test_failure_of_long_ago_does_not_count():
    """A disk that was replaced in the meantime is not the one that failed before."""
    tablet: Any = SimpleNamespace(id="a" * 32, config_id=OpId(1, 1))
    retries = Retries(WAIT_US)
    forgotten_us = KEPT_WAITS * (WAIT_US << MAX_DOUBLINGS)
    for number, (now_us, may_again) in enumerate(
        [(0, True), (forgotten_us, True), (2 * forgotten_us - 1, False)]
    ):
        tablet.config_id = OpId(1, number + 1)
        retries.copy_failed(tablet, SERVER, now_us)
        assert retries.may_add(tablet, SERVER, now_us) is may_again


def test_copy_that_is_ordered_again_and_makes_no_progress_is_stuck():
    copies = OrderedCopies(100)
    for now_us in (0, 90):
        copies.ordered(TabletId("a" * 32), SERVER, now_us)
    assert not copies.stuck(TabletId("a" * 32), SERVER, 100)
    assert copies.stuck(TabletId("a" * 32), SERVER, 101)
