"""The tablet against its model: any sequence of writes, flushes, merges and restarts reads the same."""

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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


@st.composite
def batches(draw: st.DrawFn, schema: Schema) -> tuple[Op, list[Row], list[str], bool]:
    op = draw(st.sampled_from([*WRITES, Op.MIXED, Op.MIXED]))
    chance = random.Random(draw(st.integers(0, 2**32)))
    keys = [c.name for c in schema.key_columns]
    values = [c.name for c in schema.value_columns]
    partial = draw(st.booleans())
    columns = keys + [n for n in values if not partial or chance.random() < 0.5]
    chance.shuffle(columns)
    rows = []
    for _ in range(draw(st.integers(0, 8))):
        row: Row = {n: chance.choice(VALUES[n]) for n in columns}
        if chance.random() < NULL_KEYS:
            row[chance.choice(keys)] = None
        if op is Op.MIXED:
            row["_op"] = chance.choice(WRITES)
        rows.append(row)
    return op, rows, columns, draw(st.integers(0, 4)) == 0


class TabletMachine(RuleBasedStateMachine):
    schema = INT_KEY

    @initialize()
    def start(self) -> None:
        self.disk = SimDisk(random.Random(0))
        self.driver = Driver("data/t", self.schema, files=self.disk.mount())
        self.model = Model(self.schema)
        self.horizon = 0

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        op, rows, columns, all_or_nothing = data.draw(batches(self.schema))
        count, errors = self.driver.write_full(op, rows, columns, all_or_nothing=all_or_nothing)
        expected = self.model.write(self.driver.now, op, rows, columns, all_or_nothing)
        assert (count, [(e.row, e.code) for e in errors]) == expected

    @rule()
    def flush(self) -> None:
        self.driver.flush()
        assert self.driver.tablet.unflushed_bytes() == 0

    @rule(data=st.data(), early=st.booleans(), kind=st.sampled_from(["flush", "compact"]))
    def rewrite_while_writing(self, data: st.DataObject, early: bool, kind: str) -> None:
        tablet = self.driver.tablet
        if kind == "flush":
            build = tablet.prepare_flush(self.driver.cut())
        else:
            build = tablet.prepare_compaction(None, force=True)
        if build is None:
            return
        assert tablet.prepare_flush(self.driver.cut()) is None
        if early:
            self.write(data)
        install = build()
        self.write(data)
        self.contents()
        install()

    @rule(back=st.integers(0, 5), force=st.booleans())
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

    @rule(pick=st.integers(0, 1000))
    def past(self, pick: int) -> None:
        times = [t for t in self.model.history if t >= self.horizon]
        at = times[pick % len(times)]
        self.check_scan(at)
        if self.horizon:
            with pytest.raises(HistoryGone):
                self.driver.tablet.view().scan(self.horizon - 1)

    @rule(first=st.integers(0, 1000), second=st.integers(0, 1000), size=st.integers(1, 3))
    def changes(self, first: int, second: int, size: int) -> None:
        times = sorted(t for t in self.model.history if t >= self.horizon)
        since, until = sorted((times[first % len(times)], times[second % len(times)]))
        view = self.driver.tablet.view()
        net = [r for b in view.changes(since, until, batch_rows=size) for r in b.to_pylist()]
        assert net == self.model.net(since, until)
        every = [r for b in view.changes(since, until, net=False) for r in b.to_pylist()]
        assert every == self.model.by_version(since, until)

    @precondition(lambda self: self.model.rows)
    @rule(size=st.integers(1, 4), limit=st.integers(0, 5), pick=st.integers(0, 1000))
    def ordered(self, size: int, limit: int, pick: int) -> None:
        view, now = self.driver.tablet.view(), self.driver.now
        expected = [self.model.rows[k] for k in sorted(self.model.rows)]
        found = self.driver.rows(ordered=True, limit=limit, batch_rows=size)
        assert found == expected[:limit]
        assert len(self.driver.rows(limit=limit)) == min(limit, len(expected))
        value = VALUES["a"][pick % 4]
        column = self.schema.column("a")
        where = Compare(column.id, Sign.LE, pa.scalar(value, column.type))
        matching = [r for r in expected if r["a"] is not None and r["a"] <= value]
        assert self.driver.rows(ordered=True, where=where) == matching
        assert view.count(now, where) == len(matching)
        key = self.schema.key_columns[0]
        wanted = VALUES[key.name][pick % 3]
        equal = Compare(key.id, Sign.EQ, pa.scalar(wanted, key.type))
        assert self.driver.rows(ordered=True, where=equal) == [
            r for r in expected if r[key.name] == wanted
        ]

    @rule(pick=st.integers(0, 1000))
    def get(self, pick: int) -> None:
        times = [t for t in self.model.history if t >= self.horizon]
        at = times[pick % len(times)]
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
