"""The virtual-time loop and lanes: order from the seed, end and pause of an incarnation, budgets."""

import asyncio
import gc
import inspect
import random
import warnings
import weakref
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from nyala.env.tasks import Lane
from tests.sim.world.loop import BudgetSpent, Incarnation, SimLoop, Stuck, run
from tests.sim.world.tasks import LaneDelays, SimClock, SimTasks


def test_time_jumps_to_the_next_timer_and_callbacks_keep_their_order():
    async def main(loop: SimLoop) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []
        for name, after_s in (("late", 3600.0), ("early", 0.5), ("also early", 0.5)):
            loop.call_later(after_s, lambda n: seen.append((n, loop.now_us())), name)
        await loop.delay(7_200_000_000)
        return seen

    seen = run(main, max_time_s=10_000)
    assert sorted(seen[:2]) == [("also early", 500_000), ("early", 500_000)]
    assert seen[2] == ("late", 3_600_000_000)


def test_deadlocked_run_is_reported_as_stuck():
    async def main(loop: SimLoop) -> None:
        await loop.create_future()

    with pytest.raises(Stuck, match="nothing is left"):
        run(main)


def test_run_ends_when_its_virtual_time_is_spent():
    async def main(loop: SimLoop) -> None:
        while True:
            await loop.delay(1_000_000)

    with pytest.raises(BudgetSpent):
        run(main, max_time_s=60)


def test_threads_are_refused():
    async def main(loop: SimLoop) -> None:
        await loop.run_in_executor(None, print)

    with pytest.raises(AssertionError, match=r"env\.tasks\.run"):
        run(main)


def test_task_of_stopped_process_that_waits_again_is_closed():
    """`aclosing` replaces GeneratorExit by an error, after which a follower pauses and tries again."""

    async def main(loop: SimLoop) -> Any:
        incarnation = Incarnation("a")

        async def pages() -> AsyncGenerator[int, None]:
            yield await loop.create_future()

        async def follow() -> None:
            while True:
                try:
                    async with aclosing(pages()) as found:
                        async for _ in found:
                            pass
                except Exception:
                    await loop.delay(1000)

        coro = follow()
        incarnation.inside(loop.create_task, coro)
        await loop.delay(1000)
        incarnation.end()
        return inspect.getcoroutinestate(coro)

    assert run(main) == inspect.CORO_CLOSED


def test_stopped_process_runs_no_callbacks_or_effective_finally_blocks():
    async def main(loop: SimLoop) -> list[str]:
        seen: list[str] = []
        incarnation = Incarnation("a")

        async def work() -> None:
            try:
                while True:
                    await loop.delay(1000)
                    seen.append("step")
            finally:
                seen.append("finally")
                loop.call_soon(seen.append, "after death")
                loop.create_task(work())

        incarnation.inside(loop.create_task, work())
        await loop.delay(3500)
        incarnation.end()
        await loop.delay(10_000)
        return seen

    assert run(main) == ["step", "step", "step", "finally"]


def test_paused_process_runs_missed_callbacks_in_order():
    async def main(loop: SimLoop) -> list[int]:
        seen: list[int] = []
        incarnation = Incarnation("a")
        for after_s in (0.001, 0.002, 0.003):
            incarnation.inside(
                loop.call_later, after_s, lambda n=after_s: seen.append(round(n * 1000))
            )
        incarnation.pause()
        await loop.delay(10_000)
        assert seen == []
        incarnation.resume(loop)
        await loop.delay(1)
        return seen

    assert run(main) == [1, 2, 3]


def test_disk_and_apply_lanes_keep_call_order_under_any_delays():
    async def main(loop: SimLoop) -> tuple[list[int], int]:
        tasks = SimTasks(loop, random.Random(1), LaneDelays(slow_rate=0.3))
        seen: list[int] = []
        await asyncio.gather(*[tasks.run(Lane.DISK, seen.append, n) for n in range(50)])
        await tasks.close()
        return seen, tasks.slow_jobs

    seen, slow = run(main)
    assert seen == list(range(50))
    assert slow > 0


def test_lane_raises_error_to_caller_and_continues():
    async def main(loop: SimLoop) -> int:
        tasks = SimTasks(loop, random.Random(1))
        with pytest.raises(OSError, match="no"):
            await tasks.run(Lane.DISK, _raise, OSError("no"))
        return await tasks.run(Lane.DISK, lambda: 7)

    assert run(main) == 7


def test_failing_background_task_fails_the_run():
    async def main(loop: SimLoop) -> None:
        async def work() -> None:
            raise AssertionError("broken")

        SimTasks(loop, random.Random(1)).spawn(work(), "work")
        await loop.delay(1)

    with pytest.raises(AssertionError, match="broken"):
        run(main)


def test_clocks_are_skewed_drift_and_jump():
    async def main(loop: SimLoop) -> None:
        true, fast = SimClock(loop), SimClock(loop, skew_us=-5_000, drift_ppm=100)
        await loop.delay(10_000_000)
        assert fast.wall_us() - true.wall_us() == -5_000 + 1000
        fast.jump(1_000_000)
        assert fast.wall_us() - true.wall_us() == 996_000
        assert fast.monotonic_us() == 10_001_000

    run(main)


def test_a_run_that_has_ended_is_freed_with_its_unfinished_tasks():
    """An asynchronous generator is left where what it awaits would wait again when it is closed."""

    async def undo(loop: SimLoop) -> None:
        await loop.delay(1_000_000)

    async def wait_again(loop: SimLoop) -> None:
        try:
            await loop.delay(1_000_000)
        finally:
            await asyncio.shield(undo(loop))

    async def numbers(loop: SimLoop) -> AsyncGenerator[int, None]:
        yield 1
        await wait_again(loop)

    async def read(loop: SimLoop) -> None:
        try:
            async for _ in numbers(loop):
                pass
        finally:
            await asyncio.shield(undo(loop))

    tasks: list[weakref.ref[asyncio.Task[None]]] = []

    async def main(loop: SimLoop) -> weakref.ref[SimLoop]:
        tasks.append(weakref.ref(loop.create_task(read(loop))))
        await loop.delay(1)
        return weakref.ref(loop)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        ended = run(main)
        gc.collect()
    assert ended() is None
    assert tasks[0]() is None
    assert not seen


def _raise(error: Exception) -> None:
    raise error
