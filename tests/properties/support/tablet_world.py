"""A tablet on a disk that may fail, its model, and the views of readers: the state of random steps.

`check_*` compare everything that can be read with the model; the steps are in `tablet_steps.py`.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pyarrow as pa

from nyala.common.alteration import alter
from nyala.common.expressions.bounds import KeyBounds
from nyala.common.expressions.predicate import Predicate
from nyala.common.keys.encoding import encode_keys
from nyala.common.schema import Column, Schema
from nyala.common.values.plain_rows import RowReader, encode_rows
from nyala.tablet.files import columns
from nyala.tablet.files.replicated_ops import RowOp, decode_result
from nyala.tablet.maintain import flush
from nyala.tablet.read import changes, ordered
from nyala.tablet.read.view import View
from nyala.tablet.rows.selection import EVERY_KEY
from nyala.tablet.write import memrowset
from tests.properties.support.predicate_reference import evaluate_reference
from tests.properties.support.tablet_model import Key, Model, Row, Stored, exact
from tests.properties.support.tablet_rows import (
    random_alteration,
    random_keys,
    random_predicate,
    random_rows,
    random_schema,
)
from tests.sim.world.files import SimDisk
from tests.unit.tablet.support.tablet_support import Driver, payload

CODECS = ["none", "lz4", "zstd"]
STARTS = [0, 7_250_000_000_000_000_001]
"""Timestamps, small ones and those of a clock, whose successors are equal as floating point numbers."""
SMALL = (
    (ordered, "WINDOW_ROWS", 4), (ordered, "_FIRST_ROWS", 2), (columns, "BLOCK_ROWS", 3),
    (changes, "GATHER_ROWS", 3), (memrowset, "_FIRST_CAPACITY", 4), (memrowset, "_FAN_IN", 2),
    (memrowset, "CHUNK_ROWS", 6), (flush, "MAX_DEL_FILES", 2),
)  # fmt: skip
"""Limits that a few rows reach: windows, blocks and arrays."""
HashKeys = Callable[..., Any]


@contextmanager
def sizes(*, small: bool) -> Iterator[None]:
    """Context in which windows, blocks and arrays are small, or unchanged."""
    with ExitStack() as stack:
        for module, name, size in SMALL if small else ():
            assert size < getattr(module, name)
            stack.enter_context(mock.patch.object(module, name, size))
        yield


class World:
    """One tablet, its model, and the views of readers."""

    def __init__(
        self, seed: int, schema: Schema | None = None, hash_keys: HashKeys | None = None
    ) -> None:
        chance = random.Random(seed)
        schema = schema or random_schema(chance)
        self.keys = random_keys(chance, schema)
        self.disk = SimDisk(random.Random(seed))
        weak = {} if hash_keys is None else {"hash_keys": hash_keys}
        codec, start = chance.choice(CODECS), chance.choice(STARTS)
        self.driver = Driver(
            "data/t", schema, files=self.disk.mount(), compression=codec, start=start, **weak
        )
        self.model = Model(schema)
        self.horizon = 0
        self.schemas = [schema]  # at all times so far
        self.held: list[tuple[View, int, dict[Key, Row]]] = []

    @property
    def schema(self) -> Schema:
        return self.model.schema

    @property
    def now(self) -> int:
        return self.driver.now

    def write(self, chance: random.Random, op: RowOp, *, whole: bool = False, **shape: Any) -> None:
        """Apply one batch; the tablet's result must equal the model's."""
        rows, columns = random_rows(chance, self.schema, self.keys, op, **shape)
        found = self.driver.write_full(op, rows, columns, all_or_nothing=whole)
        expected = self.model.write(self.now, op, rows, columns, whole)
        assert (found[0], [(e.row, e.code) for e in found[1]]) == expected

    def write_for_an_older_schema(self, chance: random.Random) -> None:
        """Apply a batch that was in flight when the table was altered."""
        under, op = chance.choice(self.schemas), chance.choice(list(RowOp))
        rows, columns = random_rows(chance, under, self.keys, op)
        data = payload(under, op, rows, columns)
        expected = self.model.write(self.now + 10, op, rows, columns, under=under)
        [result] = self.driver.tablet.apply([self.driver.entry(data)])
        count, errors = decode_result(result)
        assert (count, [(e.row, e.code) for e in errors]) == expected

    def alter(self, chance: random.Random) -> None:
        """Apply one to three alterations at once, or one without effect."""
        schema = self.schema
        for _ in range(chance.randrange(1, 4)):
            schema = alter(schema, [random_alteration(chance, schema)])
        if chance.random() < 0.1:
            schema = chance.choice(self.schemas)
        expected = int(schema.version > self.schema.version)
        assert self.driver.apply_schema(schema) == (expected, [])
        if expected:
            self.driver.schema = self.model.schema = schema
            self.schemas.append(schema)
        assert self.driver.tablet.info.schema.version == self.schema.version

    def write_group(self, chance: random.Random, count: int, *, alike: bool = False) -> None:
        """Apply several batches in one call, of one form or several: grouping never changes results."""
        expected, entries = [], []
        op, given = chance.choice(list(RowOp)), None
        for _ in range(count):
            if not alike:
                op, given = chance.choice(list(RowOp)), None
            rows, given = random_rows(chance, self.schema, self.keys, op, columns=given)
            data = payload(self.schema, op, rows, given)
            entries.append(self.driver.entry(data, step=chance.choice([1, 10])))
            expected.append(self.model.write(self.now, op, rows, given))
        found = [decode_result(r) for r in self.driver.tablet.apply(entries)]
        assert [(n, [(e.row, e.code) for e in errors]) for n, errors in found] == expected

    def reopen(self, *, power_cut: bool) -> None:
        """Crash the process or the machine; the recovered tablet reads the same."""
        before = self.horizon
        (self.disk.crash if power_cut else self.disk.kill)()
        self.disk.die_at = None
        self.driver.files = self.disk.mount()
        self.driver.reopen()
        self.held.clear()
        self.horizon = self.driver.tablet.horizon
        assert self.horizon >= before

    def some_time(self, chance: random.Random) -> int:
        """Return a readable time: at, right before or right after a change."""
        at = chance.choice(self.model.stamps) + chance.choice([-1, 0, 0, 1])
        return min(max(at, self.horizon), self.now)

    def hold(self, at: int) -> None:
        """Take a view and keep it."""
        self.held = [*self.held[-4:], (self.driver.tablet.view(), at, self.model.at(at))]

    def check_held(self) -> None:
        """Check that reads of the kept views are unchanged."""
        for view, at, expected in self.held:
            found = [r for b in view.scan(at, ordered=True) for r in b.to_pylist()]
            assert exact(found) == exact(list(expected.values()))
            assert view.count(at) == len(expected)
            rows = view.get(at, self.key_batch(self.keys, view.schema)).to_pylist()
            wanted = [{**expected[k], "_row": i} for i, k in enumerate(self.keys) if k in expected]
            assert exact(rows) == exact(wanted)
            assert exact(self._one_by_one(view, at, self.keys)) == exact(wanted)

    def check_now(self) -> None:
        """Check all rows, by scan and by count."""
        self.check_scan(self.now)
        assert self.driver.tablet.rows == len(self.model.rows)

    def check_scan(self, at: int) -> None:
        view, expected = self.driver.tablet.view(), self.model.at(at)
        found = [r for b in view.scan(at) for r in b.to_pylist()]
        keys = [tuple(r[n] for n in self.model.key_names) for r in found]
        assert len(set(keys)) == len(keys)
        assert exact(dict(zip(keys, found, strict=True))) == exact(expected)
        assert view.count(at) == len(expected)

    def check_get(self, at: int, wanted: list[Key]) -> None:
        """Check look-ups of some keys, in any order, some of them twice."""
        expected = self.model.at(at)
        batch = self.key_batch(wanted, self.schema)
        view = self.driver.tablet.view()
        found = view.get(at, batch).to_pylist()
        rows = [{**expected[k], "_row": i} for i, k in enumerate(wanted) if k in expected]
        assert exact(found) == exact(rows)
        assert exact(self._one_by_one(view, at, wanted)) == exact(rows)

    def _one_by_one(self, view: View, at: int, wanted: list[Key]) -> list[dict[str, Any]]:
        """As `View.get`, by `View.few` and the encoding of its rows."""
        columns, batch = view.schema.columns, self.key_batch(wanted, view.schema)
        encoded = encode_keys(batch.columns, [a.type for a in batch.columns])
        keys = [encoded.key_at(n) for n in range(len(wanted))]
        raw = encode_rows(view.few(at, keys, [c.id for c in columns]))
        reader = RowReader([c.name for c in columns], [c.type for c in columns])
        rows = enumerate(reader.read(raw, len(keys)))
        return [{**row, "_row": n} for n, row in rows if row is not None]

    def key_batch(self, keys: list[Key], schema: Schema) -> pa.RecordBatch:
        columns = schema.key_columns
        arrays = [pa.array([k[i] for k in keys], c.type) for i, c in enumerate(columns)]
        return pa.RecordBatch.from_arrays(arrays, names=[c.name for c in columns])

    def check_query(self, chance: random.Random, at: int) -> None:
        """Check an ordered scan with any options, and the count of the same."""
        view, where = self.driver.tablet.view(), random_predicate(chance, self.schema)
        state = sorted(self.model.state_at(at).items())
        matching = [(k, row) for k, row in state if evaluate_reference(where, row) is True]
        assert view.count(at, where) == len(matching)
        wanted = self._some_columns(chance)
        limit = chance.choice([None, 0, 1, 2, 4])
        within = EVERY_KEY
        if chance.random() < 0.4:
            key = chance.choice(self.keys)
            within = KeyBounds(self.encoded(key) + b"\0")
            matching = [(k, row) for k, row in matching if k > key]
        batches = view.scan(
            at, [c.id for c in wanted], where, ordered=True, limit=limit, within=within,
            batch_rows=chance.randrange(1, 5),
        )  # fmt: skip
        found = [r for b in batches for r in b.to_pylist()]
        expected = [self.model.shown(row, wanted) for _, row in matching]
        assert exact(found) == exact(expected[:limit])
        some = [r for b in view.scan(at, None, where, limit=limit) for r in b.to_pylist()]
        whole = exact(
            [self.model.shown(row) for _, row in state if evaluate_reference(where, row) is True]
        )
        assert all(exact(r) in whole for r in some)
        assert len(some) == min(len(whole), len(whole) if limit is None else limit)

    def _some_columns(self, chance: random.Random) -> tuple[Column, ...]:
        chosen = chance.sample(
            self.schema.columns, chance.randrange(1, len(self.schema.columns) + 1)
        )
        return tuple(chosen)

    def encoded(self, key: Key) -> bytes:
        kinds = [c.type for c in self.schema.key_columns]
        arrays = [pa.array([v], kind) for v, kind in zip(key, kinds, strict=True)]
        return encode_keys(arrays, kinds).key_at(0)

    def check_changes(self, chance: random.Random, since: int, until: int, *, net: bool) -> None:
        """Check the feed of (since, until], with or without a condition, in batches of any size."""
        where = random_predicate(chance, self.schema) if chance.random() < 0.4 else None
        before = chance.random() < 0.4
        batches = self.driver.tablet.view().changes(
            since, until, net=net, where=where, before=before, batch_rows=chance.randrange(1, 4)
        )
        found = [r for b in batches for r in b.to_pylist()]
        assert exact(found) == exact(self._changes(since, until, where, net=net, before=before))
        if since < until:
            self._check_end(since, until, chance.choice([1, 2, 5, 20, 1000]))

    def _check_end(self, since: int, until: int, limit: int) -> None:
        """Check the end of a part of the feed: it has few changes, or those of one time."""
        end = self.driver.tablet.view().changes_end(since, until, limit)
        assert since < end <= until
        times = [e[0] for e in self.model.by_version(since, until)]
        part = [t for t in times if t <= end]
        assert len(part) <= limit or len(set(part)) == 1
        if 2 * len(times) <= limit:  # each change begins a version, ends one, or both
            assert end == until

    def _changes(
        self, since: int, until: int, where: Predicate | None, *, net: bool, before: bool
    ) -> list[Row]:
        """Return the changes of the table of matching rows, by the model."""

        def matches(row: Stored | None) -> bool:
            return row is not None and (where is None or evaluate_reference(where, row) is True)

        found = []
        events = (self.model.net if net else self.model.by_version)(since, until)
        for stamp, key, op, row in events:
            old = self.model.state_at(since if net else stamp - 1).get(key)
            was, is_now = matches(old), op != "delete" and matches(row)
            if not (was or is_now):
                continue
            op = ("update" if was else "insert") if is_now else "delete"
            shown = self.model.change((stamp, key, op, row))
            if before:
                shown["_before"] = self.model.shown(old) if was and old is not None else None
            found.append(shown)
        return found
