"""Decisions of the catalog in memory: their commit times in order, whatever the order of their rows."""

import random

from nyala.master.catalog.decisions import Decisions
from nyala.master.catalog.plan import CatalogPlan
from nyala.wire.proto import catalog_pb2 as cat


def decided(*times):
    return tuple(cat.DecisionRecord(transaction=t.to_bytes(16, "big"), at=t) for t in times)


def names(*times):
    return {t.to_bytes(16, "big"): None for t in times}


def test_earliest_commit_time_is_that_of_the_rows_that_are_left():
    decisions = Decisions()
    assert decisions.earliest(()) is None
    decisions.publish(CatalogPlan(decisions=decided(5, 3, 9)))
    assert decisions.earliest(()) == 3
    assert decisions.earliest(names(3, 5)) == 9
    assert decisions.earliest(()) == 3, "their removal may fail"
    decisions.publish(CatalogPlan(removed=tuple(names(3))))
    assert decisions.earliest(()) == 5
    assert decisions.earliest(names(5, 9)) is None
    assert decisions.latest == 9


def test_earliest_commit_time_is_the_minimum_after_random_removals():
    rng = random.Random(3)
    decisions, left = Decisions(), set()
    times = rng.sample(range(1, 10_000), 600)
    for time in times:
        decisions.publish(CatalogPlan(decisions=decided(time)))
        left.add(time)
        if rng.random() < 0.6:
            some = rng.sample(sorted(left), min(len(left), 2))
            without = names(*some)
            assert decisions.earliest(without) == min(left - set(some), default=None)
            if rng.random() < 0.7:
                decisions.publish(CatalogPlan(removed=tuple(without)))
                left -= set(some)
