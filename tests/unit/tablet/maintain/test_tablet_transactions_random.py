"""Random transactions, writes, flushes, compactions and restarts of a tablet, beside a model of its rows."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.files.transaction_ops import TransactionOutcome
from tests.unit.tablet.support.tablet_support import Driver
from tests.unit.tablet.support.transaction_support import Transactions

KEYS = 12
Rows = dict[int, int]


@dataclass(frozen=True)
class Condition:
    """A delete by condition: its text, and which rows (key, value) it selects."""

    where: str
    selects: Callable[[int, int], bool]


Change = tuple[int, int | None] | Condition
"""A key with its new value, None for a delete; or a delete by condition."""


class World:
    """A tablet, and the rows that it has to have at each time.

    Args:
        place: directory of the tablet.
        seed: decides everything.
    """

    def __init__(self, place: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.driver = Driver(place)
        self.txns = Transactions(self.driver)
        self.rows: Rows = {}
        self.history: list[tuple[int, Rows]] = [(0, {})]
        self.staged: dict[bytes, list[Change]] = {}
        self.prepared: dict[bytes, int] = {}
        self.committed = self.begun = 0
        self.late: Callable[[], None] | None = None

    def change(self) -> tuple[int, int | None]:
        return self.random.randrange(KEYS), self.random.choice([None, self.random.randrange(100)])

    def condition(self) -> Condition:
        number, low = self.random.randrange(100), self.random.randrange(KEYS)
        return self.random.choice(
            [
                Condition("true", lambda k, a: True),
                Condition(f"a < {number}", lambda k, a: a < number),
                Condition(f"k >= {low}", lambda k, a: k >= low),
                Condition(f"k = {low} or a > {number}", lambda k, a: k == low or a > number),
                Condition(f"a * 2 > {number}", lambda k, a: a * 2 > number),
            ]
        )

    def take_effect(self, at: int, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, Condition):
                for key in [k for k, a in self.rows.items() if change.selects(k, a)]:
                    del self.rows[key]
                continue
            key, value = change
            self.rows.pop(key, None)
            if value is not None:
                self.rows[key] = value
        self.history.append((at, dict(self.rows)))

    def write(self) -> None:
        if self.prepared:
            return  # rule W
        key, value = self.change()
        if value is None:
            self.driver.write(RowOp.DELETE_IGNORE, [{"k": key}], ["k"])
        else:
            self.driver.write(RowOp.UPSERT, [{"k": key, "a": value, "s": ""}])
        self.take_effect(self.driver.now, [(key, value)])

    def stage(self) -> None:
        free = [t for t in self.staged if t not in self.prepared]
        if len(self.staged) < 3:
            self.begun += 1
            free.append(self.begun.to_bytes(16, "big"))
        if not free:
            return
        txn = self.random.choice(free)
        for _ in range(self.random.randint(1, 3)):
            if self.random.random() < 0.25:
                self.staged.setdefault(txn, []).append(condition := self.condition())
                result = self.txns.delete_where(txn, condition.where)
                assert result.outcome is TransactionOutcome.DONE
                continue
            key, value = self.change()
            if value is None:
                self.txns.stage(txn, RowOp.DELETE, [{"k": key}], ["k"])
            else:
                self.txns.stage(txn, RowOp.UPSERT, [{"k": key, "a": value, "s": ""}])
            self.staged.setdefault(txn, []).append((key, value))

    def prepare(self) -> None:
        free = [t for t in self.staged if t not in self.prepared]
        if free:
            txn = self.random.choice(free)
            result = self.txns.prepare(txn)
            assert result.outcome is TransactionOutcome.DONE
            self.prepared[txn] = result.time

    def resolve(self) -> None:
        """Rule O: every other prepared transaction will have a later commit time."""
        if self.prepared:
            txn = self.random.choice(list(self.prepared))
            at = max(self.prepared[txn], self.history[-1][0]) + 1
            result = self.txns.resolve(txn, at)
            assert (result.outcome, result.time) == (TransactionOutcome.ENDED, at)
            del self.prepared[txn]
            self.take_effect(at, self.staged.pop(txn))
            self.committed += 1

    def undo(self) -> None:
        txn = self.random.choice(list(self.staged) or [b"?" * 16])
        if txn in self.prepared:
            del self.prepared[txn]
            self.txns.unprepare(txn)
        elif txn in self.staged:
            del self.staged[txn]
            assert self.txns.drop(txn).outcome is TransactionOutcome.GONE

    def maintain(self) -> None:
        """Begin a flush or compaction, and end it at the next call."""
        if self.late is not None:
            install, self.late = self.late, None
            install()
            return
        tablet = self.driver.tablet
        if self.random.random() < 0.5:
            build = tablet.prepare_flush(self.driver.flush_point())
        else:
            build = tablet.prepare_compaction(None, force=self.random.random() < 0.5)
        self.late = None if build is None else build()

    def restart(self) -> None:
        self.late = None
        self.driver.reopen()

    def check(self) -> None:
        readable = min(self.prepared.values(), default=self.driver.now)
        times = [at for at, _ in self.history[-4:] if at <= readable or not self.prepared]
        for at in times:
            expected = next(rows for t, rows in reversed(self.history) if t <= at)
            assert {r["k"]: r["a"] for r in self.driver.rows(at)} == expected, at
        assert self.driver.tablet.rows == len(self.rows)

    def follow(self) -> None:
        """Rebuild the rows from the change feed."""
        rows: Rows = {}
        for batch in self.driver.tablet.view().changes(0, self.driver.now, net=False):
            for row in batch.to_pylist():
                if row["_op"] == "delete":
                    assert row["k"] in rows
                    del rows[row["k"]]
                else:
                    assert (row["_op"] == "update") == (row["k"] in rows)
                    rows[row["k"]] = row["a"]
        assert rows == self.rows


@pytest.mark.parametrize("seed", range(6))
def test_random_transactions_match_the_model_through_flushes_and_restarts(tmp_path, seed):
    world = World(str(tmp_path / "t"), seed)
    actions = (
        [world.write] * 4 + [world.stage] * 4 + [world.prepare] * 3 + [world.resolve] * 3
        + [world.undo, world.restart] + [world.maintain] * 5
    )  # fmt: skip
    for _ in range(160):
        world.random.choice(actions)()
        world.check()
    world.follow()
    assert world.committed
