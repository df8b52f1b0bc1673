import asyncio

import pytest

from nyala.common.ids import TableId, TabletId
from nyala.master.locks import Locks
from nyala.master.plans import Scope
from tests.sim.loop import run

A = Scope(("n",), (TableId("t"),), (TabletId("1"), TabletId("2")))


def test_names_then_tables_then_tablets_each_in_order():
    scope = Scope(("z", "a"), (TableId("9"), TableId("1")), (TabletId("5"), TabletId("0")))
    assert scope.ordered() == [(0, "a"), (0, "z"), (1, "1"), (1, "9"), (2, "0"), (2, "5")]


def test_one_after_the_other_in_the_order_in_which_they_asked():
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


def test_a_waiter_that_gives_up_leaves_nothing_locked():
    async def main(loop):
        locks = Locks()
        held = asyncio.Event()

        async def holder():
            async with locks.hold(A):
                await held.wait()

        async def waiter():
            async with locks.hold(A):
                raise AssertionError("it gave up")

        first = loop.create_task(holder())
        second = loop.create_task(waiter())
        await loop.delay(5)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        held.set()
        await first
        return locks.held()

    assert run(main) == 0


def test_an_error_inside_releases():
    async def main(loop):
        locks = Locks()
        with pytest.raises(ValueError):
            async with locks.hold(A):
                raise ValueError
        async with locks.hold(A):
            return locks.held()

    assert run(main) == 4
