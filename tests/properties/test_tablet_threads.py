"""Readers on their own threads while a tablet is written, flushed and compacted, with a server's lanes.

The lane APPLY applies, fixes cuts and installs; the pool COMPUTE builds and reads. In any interleaving, a
read in a view equals the model at its timestamp, and a held view never changes.
"""

import asyncio
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from nyala.env.tasks import Lane, LoopTasks
from nyala.tablet.files.replicated_ops import RowOp, decode_result
from nyala.tablet.read.view import View
from tests.enough import enough
from tests.properties.support.predicate_reference import evaluate_reference
from tests.properties.support.tablet_model import Model, exact
from tests.properties.support.tablet_rows import random_predicate, weak_hash
from tests.unit.tablet.support.tablet_support import PAIR_KEY, Driver, payload

HOSTS = ["", "a", "a\0", "b", "é\U0010ffff"]
KEYS = 200
READERS = 3
ROUNDS = 120


class Scene:
    """One tablet shared by a writer, maintenance and readers."""

    def __init__(self, directory: str, seed: int, **kwargs: Any) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.driver = Driver(directory, PAIR_KEY, **kwargs)
        self.model = Model(PAIR_KEY)
        self.applied = 0  # the latest time at which all rows can be read
        self.done = False
        self.reads = self.works = 0
        self.tasks = LoopTasks(compute_threads=2)

    async def run(self) -> None:
        readers = [self.read(random.Random(self.seed + n)) for n in range(READERS)]
        await asyncio.gather(self.write(), self.maintain(), *readers)
        await self.tasks.close()

    async def write(self) -> None:
        try:
            for _ in range(ROUNDS):
                await self.tasks.run(Lane.APPLY, self.apply_one)
        finally:
            self.done = True

    def apply_one(self) -> None:
        """Write hundreds of rows over few keys, so that memory grows during reads. Lane APPLY."""
        chance = self.chance
        op = chance.choice(
            [RowOp.UPSERT, RowOp.UPSERT, RowOp.INSERT_IGNORE, RowOp.UPDATE, RowOp.DELETE_IGNORE]
        )
        columns = ["host", "n", "a"] if op is RowOp.UPDATE else ["host", "n", "a", "s"]
        rows = [
            {"host": chance.choice(HOSTS), "n": chance.randrange(KEYS), "a": n, "s": f"{n % 7}"}
            for n in range(chance.choice([1, 5, 400]))
        ]
        entry = self.driver.entry(payload(PAIR_KEY, op, rows, columns))
        [result] = self.driver.tablet.apply([entry])
        expected = self.model.write(entry.stamp, op, rows, columns, False)
        count, errors = decode_result(result)
        assert (count, [(e.row, e.code) for e in errors]) == expected
        self.applied = entry.stamp

    async def maintain(self) -> None:
        """Flush or compact repeatedly, as the server's maintenance does."""
        tablet, chance = self.driver.tablet, random.Random(self.seed)
        while not self.done:
            if chance.random() < 0.6:
                build = await self.tasks.run(
                    Lane.APPLY, lambda: tablet.prepare_flush(self.driver.flush_point())
                )
            else:
                build = await self.tasks.run(
                    Lane.APPLY, lambda: tablet.prepare_compaction(None, force=True)
                )
            if build is not None:
                install = await self.tasks.run(Lane.COMPUTE, build)
                await self.tasks.run(Lane.APPLY, install)
                self.works += 1

    async def read(self, chance: random.Random) -> None:
        """Take a view and read it twice: at once, and after reads of other views."""
        held = (self.driver.tablet.view(), 0)
        while not self.done:
            newest = self.applied
            view = self.driver.tablet.view()
            at = newest if chance.random() < 0.5 else chance.randrange(newest + 1)
            await self.tasks.run(Lane.COMPUTE, self.compare, view, at, chance)
            await self.tasks.run(Lane.COMPUTE, self.compare, *held, chance)
            held = (view, at)
            self.reads += 1

    def compare(self, view: View, at: int, chance: random.Random) -> None:
        """Compare one read of each kind with the model at that time."""
        state = sorted(self.model.state_at(at).items())
        shown = exact([self.model.shown(row) for _, row in state])
        assert exact([r for b in view.scan(at, ordered=True) for r in b.to_pylist()]) == shown
        assert view.count(at) == len(state)
        found = [r for b in view.scan(at, batch_rows=100) for r in b.to_pylist()]
        assert exact(sorted(found, key=lambda r: (r["host"], r["n"]))) == shown
        where = random_predicate(chance, PAIR_KEY)
        assert view.count(at, where) == sum(
            evaluate_reference(where, row) is True for _, row in state
        )
        since = chance.randrange(at + 1)
        for net in (True, False):
            events = (self.model.net if net else self.model.by_version)(since, at)
            feed = [r for b in view.changes(since, at, net=net) for r in b.to_pylist()]
            assert exact(feed) == exact([self.model.change(e) for e in events])


@pytest.fixture
def threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("threads_take_turns_often")
@pytest.mark.parametrize("weak", [False, True], ids=["hash", "weak_hash"])
def test_concurrent_readers_equal_model_at_their_time(tmp_path, weak):
    scene = Scene(str(tmp_path / "t"), 7, **({"hash_keys": weak_hash} if weak else {}))
    asyncio.run(scene.run())
    enough(scene.works > 3, f"{scene.works} flushes and compactions")
    enough(scene.reads > 10, f"{scene.reads} reads")
    scene.driver.reopen()
    assert scene.driver.tablet.rows == len(scene.model.rows)
