"""The tablet against its model: any sequence of writes, flushes, merges and restarts reads the same."""

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nyala.common.errors import HistoryGone
from nyala.common.predicate import Compare
from nyala.common.predicate import Op as Sign
from nyala.common.schema import Schema
from nyala.tablet.ops import Op
from tests.properties.tablet_model import Model, Row
from tests.sim.files import SimDisk
from tests.unit.tablet.tablet_support import INT_KEY, PAIR_KEY, Driver

WRITES = [op for op in Op if op is not Op.MIXED]
VALUES: dict[str, list[Any]] = {
    "k": [-(2**63), -1, 0, 1, 2, 7],
    "host": ["", "a", "a\0", "b"],
    "n": [-1, 0, 1],
    "a": [0, 1, 2, 3, None],
    "s": ["", "x", "yy", None],
    "b": [b"", b"1", b"2", None],
}
NULL_KEYS = 0.03


SEEDS = st.integers(0, 2**64 - 1)


def random_batch(schema: Schema, chance: random.Random) -> tuple[Op, list[Row], list[str], bool]:
    op = chance.choice([*WRITES, Op.UPSERT, Op.INSERT, Op.MIXED, Op.MIXED, Op.MIXED])
    keys = [c.name for c in schema.key_columns]
    values = [c.name for c in schema.value_columns]
    partial = chance.random() < 0.4
    columns = keys + [n for n in values if not partial or chance.random() < 0.5]
    chance.shuffle(columns)
    rows = []
    for _ in range(chance.choice([0, 1, 2, 3, 8])):
        row: Row = {n: chance.choice(VALUES[n]) for n in columns}
        if chance.random() < NULL_KEYS:
            row[chance.choice(keys)] = None
        if op is Op.MIXED:
            row["_op"] = chance.choice(WRITES)
        rows.append(row)
    return op, rows, columns, chance.random() < 0.2


class TabletMachine(RuleBasedStateMachine):
    """Hypothesis chooses the steps; the details of each come from a seed that it draws."""

    schema = INT_KEY

    @initialize(seed=SEEDS)
    def start(self, seed: int) -> None:
        self.disk = SimDisk(random.Random(seed))
        self.driver = Driver("data/t", self.schema, files=self.disk.mount())
        self.model = Model(self.schema)
        self.horizon = 0
        self.write(seed)

    @rule(seed=SEEDS)
    def write(self, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(chance.randrange(1, 5)):
            op, rows, columns, whole = random_batch(self.schema, chance)
            count, errors = self.driver.write_full(op, rows, columns, all_or_nothing=whole)
            expected = self.model.write(self.driver.now, op, rows, columns, whole)
            assert (count, [(e.row, e.code) for e in errors]) == expected

    @rule()
    def flush(self) -> None:
        self.driver.flush()
        assert self.driver.tablet.unflushed_bytes() == 0

    @rule(seed=SEEDS, early=st.booleans(), merge=st.booleans())
    def rewrite_while_writing(self, seed: int, early: bool, merge: bool) -> None:
        tablet = self.driver.tablet
        if merge:
            build = tablet.prepare_compaction(None, force=True)
        else:
            build = tablet.prepare_flush(self.driver.cut())
        if build is None:
            return
        assert tablet.prepare_flush(self.driver.cut()) is None
        if early:
            self.write(seed + 1)
        install = build()
        self.write(seed)
        self.contents()
        install()

    @rule(back=st.integers(0, 9), force=st.booleans())
    def compact(self, back: int, force: bool) -> None:
        times = sorted(self.model.history)
        horizon = times[max(0, len(times) - 1 - back)]
        if self.driver.compact(horizon, force=force):
            assert self.driver.tablet.horizon in (self.horizon, max(horizon, self.horizon))
            self.horizon = self.driver.tablet.horizon

    @rule(power_cut=st.booleans())
    def restart(self, power_cut: bool) -> None:
        (self.disk.crash if power_cut else self.disk.kill)()
        self.driver.files = self.disk.mount()
        self.driver.reopen()

    @rule(seed=SEEDS)
    def read(self, seed: int) -> None:
        chance = random.Random(seed)
        times = [t + d for t in self.model.history for d in (-1, 0, 1)]
        times = [t for t in times if self.horizon <= t <= self.driver.now]
        for _ in range(3):
            since, until = sorted((chance.choice(times), chance.choice(times)))
            self.check_scan(since)
            self.check_get(until)
            self.check_changes(since, until, chance)
            self.check_ordered(until, chance)
        if self.horizon:
            with pytest.raises(HistoryGone):
                self.driver.tablet.view().scan(self.horizon - 1)

    def check_changes(self, since: int, until: int, chance: random.Random) -> None:
        view = self.driver.tablet.view()
        size = chance.randrange(1, 4)
        net = [r for b in view.changes(since, until, batch_rows=size) for r in b.to_pylist()]
        assert net == self.model.net(since, until)
        every = [r for b in view.changes(since, until, net=False) for r in b.to_pylist()]
        assert every == self.model.by_version(since, until)

    def check_ordered(self, at: int, chance: random.Random) -> None:
        view, rows = self.driver.tablet.view(), self.model.at(at)
        expected = [rows[k] for k in sorted(rows)]
        limit = chance.randrange(6)
        found = self.driver.rows(at, ordered=True, limit=limit, batch_rows=chance.randrange(1, 5))
        assert found == expected[:limit]
        assert len(self.driver.rows(at, limit=limit)) == min(limit, len(expected))
        column, value = self.schema.column("a"), chance.randrange(4)
        where = Compare(column.id, Sign.LE, pa.scalar(value, column.type))
        matching = [r for r in expected if r["a"] is not None and r["a"] <= value]
        assert self.driver.rows(at, ordered=True, where=where) == matching
        assert view.count(at, where) == len(matching)
        key = self.schema.key_columns[0]
        wanted = chance.choice(VALUES[key.name])
        equal = Compare(key.id, Sign.EQ, pa.scalar(wanted, key.type))
        alike = [r for r in expected if r[key.name] == wanted]
        assert self.driver.rows(at, ordered=True, where=equal) == alike

    def check_get(self, at: int) -> None:
        model = self.model.at(at)
        keys = sorted(set(model) | set(self.model.rows))
        wanted = keys + keys[:1]
        columns = self.schema.key_columns
        arrays = [pa.array([k[i] for k in wanted], c.type) for i, c in enumerate(columns)]
        batch = pa.RecordBatch.from_arrays(arrays, names=[c.name for c in columns])
        found = self.driver.tablet.view().get(at, batch).to_pylist()
        assert found == [{**model[k], "_row": i} for i, k in enumerate(wanted) if k in model]

    def check_scan(self, at: int) -> None:
        model = self.model.at(at)
        view = self.driver.tablet.view()
        found = [r for b in view.scan(at) for r in b.to_pylist()]
        keys = [tuple(r[n] for n in self.model.keys) for r in found]
        assert len(set(keys)) == len(keys)
        assert dict(zip(keys, found, strict=True)) == model
        assert view.count(at) == len(model)

    @invariant()
    def contents(self) -> None:
        if hasattr(self, "driver"):
            self.check_scan(self.driver.now)
            assert self.driver.tablet.rows == len(self.model.rows)


class PairKeyMachine(TabletMachine):
    schema = PAIR_KEY


EXAMPLES = settings.default.max_examples if settings.default else 0
QUICK = settings(
    max_examples=max(50, EXAMPLES),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestIntKey = TabletMachine.TestCase
TestIntKey.settings = QUICK
TestPairKey = PairKeyMachine.TestCase
TestPairKey.settings = QUICK
