"""Calls of a user's function in a thread of its own: it may raise, exit, take long, and end the loop."""

import asyncio
import sys
import threading

import pytest

from nyala.env.loop_thread import LoopThread
from nyala.env.tasks import LoopTasks


class OwnError(Exception):
    """An error of the user's function."""


def test_what_it_raises_is_returned_and_the_loop_continues():
    async def main() -> list[str]:
        tasks, found = LoopTasks(), []
        for error in (OwnError(), SystemExit(3), KeyboardInterrupt()):

            def fail(error: BaseException = error) -> None:
                raise error

            found.append(type(await tasks.run_apart(fail)).__name__)
        found.append(type(await tasks.run_apart(sys.exit, 2)).__name__)
        assert await tasks.run_apart(len, "abc") is None
        await tasks.close()
        return found

    assert asyncio.run(main()) == ["OwnError", "SystemExit", "KeyboardInterrupt", "SystemExit"]


def test_closing_does_not_wait_for_it():
    began, go_on = threading.Event(), threading.Event()

    def stuck() -> None:
        began.set()
        go_on.wait(60)

    async def main() -> None:
        tasks = LoopTasks()
        task = tasks.spawn(tasks.run_apart(stuck), "stuck")
        await asyncio.to_thread(began.wait, 60)
        await tasks.close()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    go_on.set()


def test_it_may_close_the_thread_of_the_loop():
    loop, closed = LoopThread("test"), threading.Event()

    def close() -> None:
        loop.close()
        closed.set()

    async def begin() -> None:
        tasks = LoopTasks()
        tasks.spawn(tasks.run_apart(close), "closing")

    loop.run(begin())
    assert closed.wait(60)
