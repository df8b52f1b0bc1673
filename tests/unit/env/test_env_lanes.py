"""Lanes on threads: order, results, cancellation, and short calls without a thread."""

import asyncio
import threading

import pytest

from nyala.env import tasks
from nyala.env.tasks import BRIEF_CALLS, Lane, LoopTasks

SHORT = threading.get_ident  # returns the thread that ran it


async def proven(made: LoopTasks) -> None:
    for _ in range(BRIEF_CALLS):
        await made.run_brief(Lane.APPLY, SHORT)


def test_executor_lane_keeps_call_order_and_returns_results_and_errors():
    async def main() -> None:
        made = LoopTasks()
        seen: list[int] = []
        jobs = [made.run(Lane.DISK, seen.append, n) for n in range(50)]
        await asyncio.gather(*jobs)
        assert seen == list(range(50))
        assert await made.run(Lane.DISK, int, "11", base=2) == 3
        with pytest.raises(ZeroDivisionError):
            await made.run(Lane.APPLY, lambda: 1 // 0)
        await made.close()

    asyncio.run(main())


def test_call_cancelled_before_start_is_not_executed():
    async def main() -> None:
        made, go = LoopTasks(), threading.Event()
        seen: list[int] = []
        first = asyncio.ensure_future(made.run(Lane.DISK, go.wait, 10))
        second = asyncio.ensure_future(made.run(Lane.DISK, seen.append, 1))
        await asyncio.gather(asyncio.ensure_future(asyncio.to_thread(int)))
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        go.set()
        assert await first
        await made.run(Lane.DISK, seen.append, 2)
        await made.close()
        assert seen == [2]

    asyncio.run(main())


def test_short_calls_run_inline_after_measurement():
    async def main() -> None:
        made = LoopTasks()
        assert await made.run_brief(Lane.APPLY, SHORT) != SHORT()
        await proven(made)
        while await made.run_brief(Lane.APPLY, SHORT) != SHORT():
            pass  # this machine was slow in between
        with pytest.raises(ZeroDivisionError):
            await made.run_brief(Lane.APPLY, lambda: 1 // 0)
        await made.close()

    asyncio.run(main())


def test_inline_call_never_overlaps_another_call_of_its_lane():
    async def main() -> None:
        made, go = LoopTasks(), threading.Event()
        seen: list[int] = []
        await proven(made)

        def hold() -> None:
            go.wait(10)
            seen.append(1)

        held = asyncio.ensure_future(made.run(Lane.APPLY, hold))
        brief = asyncio.ensure_future(made.run_brief(Lane.APPLY, seen.append, 2))
        await asyncio.to_thread(int)
        assert seen == []
        go.set()
        await asyncio.gather(held, brief)
        await made.close()
        assert seen == [1, 2]

    asyncio.run(main())


def test_long_calls_stay_in_their_lane(monkeypatch):
    monkeypatch.setattr(tasks, "BRIEF_S", 0.0)

    async def main() -> None:
        made = LoopTasks()
        await proven(made)
        assert await made.run_brief(Lane.APPLY, SHORT) != SHORT()
        await made.close()

    asyncio.run(main())
