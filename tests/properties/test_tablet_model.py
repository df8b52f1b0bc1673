"""The tablet against its model: any sequence of writes, flushes, compactions, crashes and reads."""

import os
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from nyala.common.schema import Schema
from tests.enough import FULL
from tests.properties.support import tablet_steps as steps
from tests.properties.support.tablet_rows import weak_hash
from tests.properties.support.tablet_world import HashKeys, World, sizes
from tests.unit.tablet.support.tablet_support import INT_KEY, PAIR_KEY

SEEDS = st.integers(0, 2**64 - 1)


def one_of(kinds: dict[str, steps.Step]) -> st.SearchStrategy[str]:
    return st.sampled_from(list(kinds))


class TabletMachine(RuleBasedStateMachine):
    """Hypothesis draws the steps, and the seed of their details."""

    schema: ClassVar[Schema | None] = None
    hash_keys: ClassVar[list[HashKeys]] = []

    @initialize(seed=SEEDS, small=st.booleans())
    def start(self, seed: int, small: bool) -> None:
        self.limits = sizes(small=small)
        self.limits.__enter__()
        self.world = World(seed, self.schema, *self.hash_keys)
        steps.run(self.world, "write_group", seed)

    @rule(kind=one_of(steps.WRITING), seed=SEEDS)
    def write(self, kind: str, seed: int) -> None:
        steps.run(self.world, kind, seed)

    @rule(kind=one_of(steps.FILING), seed=SEEDS)
    def file(self, kind: str, seed: int) -> None:
        steps.run(self.world, kind, seed)

    @rule(kind=one_of(steps.FAILING), seed=SEEDS)
    def fail(self, kind: str, seed: int) -> None:
        steps.run(self.world, kind, seed)

    @rule(kind=one_of(steps.READING), seed=SEEDS)
    def read(self, kind: str, seed: int) -> None:
        steps.run(self.world, kind, seed)

    def teardown(self) -> None:
        if hasattr(self, "limits"):
            self.limits.__exit__(None, None, None)


class IntKeyMachine(TabletMachine):
    schema = INT_KEY


class PairKeyMachine(TabletMachine):
    schema = PAIR_KEY


class WeakHashMachine(TabletMachine):
    hash_keys: ClassVar[list[HashKeys]] = [weak_hash]


SEQUENCES = 75 if FULL else 15
"""Number of sequences for each machine; 10,000 in the soak."""
QUICK = settings(
    max_examples=int(os.environ.get("STORE_SEQUENCES", SEQUENCES)),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAnyKey = TabletMachine.TestCase
TestIntKey = IntKeyMachine.TestCase
TestPairKey = PairKeyMachine.TestCase
TestWeakHash = WeakHashMachine.TestCase
TestAnyKey.settings = TestIntKey.settings = QUICK
TestPairKey.settings = TestWeakHash.settings = QUICK


def test_regression_horizon_reverted_by_power_failure():
    """Regression: a compaction crashed before its manifest's name was synced; the next process used it."""
    state = IntKeyMachine()
    state.start(seed=5055, small=False)
    for _ in range(2):
        state.fail(kind="power_cut", seed=0)
    state.file(kind="flush", seed=0)
    state.fail(kind="die_in_compaction", seed=72207187)
    state.fail(kind="power_cut", seed=0)
    state.teardown()
