import asyncio
import random

import pytest

from nyala.common.ids import TableId, TabletId
from nyala.master.catalog.locks import Locks
from nyala.master.catalog.plan import Scope
from nyala.master.ddl import drop_table
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import run
from tests.unit.master.support.ddl_operations import with_table

A = Scope(("n",), (TableId("t"),), (TabletId("1"), TabletId("2")))


@pytest.mark.row("S0.56")
def test_locks_are_acquired_in_order_names_tables_tablets():
    scope = Scope(("z", "a"), (TableId("9"), TableId("1")), (TabletId("5"), TabletId("0")))
    assert scope.ordered() == [(0, "a"), (0, "z"), (1, "1"), (1, "9"), (2, "0"), (2, "5")]


def test_lock_waiters_are_served_in_request_order():
    async def main(loop):
        locks, seen = Locks(), []

        async def work(name, scope):
            async with locks.hold(scope):
                seen.append(f"{name} in")
                await loop.delay(10)
                seen.append(f"{name} out")

        await asyncio.gather(
            work("first", A), work("second", A), work("other", Scope(("elsewhere",)))
        )
        assert not locks.held()
        return seen

    assert run(main) == [
        "first in", "other in", "first out", "other out", "second in", "second out",
    ]  # fmt: skip


def test_cancelled_lock_waiter_leaves_nothing_locked():
    async def main(loop):
        locks = Locks()
        held = asyncio.Event()

        async def holder():
            async with locks.hold(A):
                await held.wait()

        async def waiter():
            async with locks.hold(A):
                raise AssertionError("the lock was not acquired")

        first = loop.create_task(holder())
        second = loop.create_task(waiter())
        await loop.delay(5)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        held.set()
        await first
        return locks.held()

    assert run(main) == 0


def test_error_in_locked_section_releases_locks():
    async def main(loop):
        locks = Locks()
        with pytest.raises(ValueError):
            async with locks.hold(A):
                raise ValueError
        async with locks.hold(A):
            return locks.held()

    assert run(main) == 4


@pytest.mark.row("S0.56")
def test_drop_table_locks_name_table_and_all_tablets():
    catalog = with_table()
    table = catalog.require("t")
    drop = drop_table.operation(pb.DropTableRequest(name="t"), 5)
    tablets = tuple(t.id for t in catalog.tablets_of(table.id))
    assert drop.scope(catalog) == Scope(("t",), (table.id,), tablets)
    assert len(tablets) == 2


@pytest.mark.row("S0.56")
@pytest.mark.parametrize("seed", range(5))
def test_concurrent_lock_requests_neither_deadlock_nor_overlap(seed):
    rng = random.Random(seed)

    def some(letters, most):
        return tuple(rng.sample(letters, rng.randint(0, most)))

    async def main(loop):
        locks, done = Locks(), []
        holders: set[tuple[int, str]] = set()

        async def work(scope):
            await loop.delay(rng.randrange(200))
            async with locks.hold(scope):
                held = scope.ordered()
                assert not holders & set(held)
                holders.update(held)
                await loop.delay(rng.randrange(20))
                holders.difference_update(held)
            done.append(scope)

        scopes = [Scope(some("abc", 2), some("tuv", 2), some("123456", 5)) for _ in range(100)]
        await asyncio.wait_for(asyncio.gather(*map(work, scopes)), 60)
        assert not locks.held()
        return len(done)

    assert run(main, max_time_s=100) == 100
