"""The hybrid clock across restarts, and the callers of a loop thread."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from nyala.common.errors import InvalidArgument, Unavailable
from nyala.common.hybrid_time import to_micros
from nyala.env import loop_thread
from nyala.env.clock import CEILING_STEP_US, HybridClock
from nyala.env.files import SystemFiles
from nyala.env.loop_thread import LoopThread

NOW_US = 1_700_000_000_000_000


class Wall:
    def __init__(self) -> None:
        self.us = NOW_US

    def monotonic_us(self) -> int:
        return self.us

    def wall_us(self) -> int:
        return self.us


def test_repeated_restarts_do_not_advance_clock(tmp_path):
    wall, files, path, last = Wall(), SystemFiles(), str(tmp_path / "clock"), 0
    for _ in range(20):
        clock = HybridClock(wall, files, path)
        assert clock.now() > last
        last = clock.now()
        wall.us += 500_000
    assert to_micros(last) - wall.us <= 2 * CEILING_STEP_US  # clock_max_ahead_ms, by default


async def numbers() -> AsyncIterator[int]:
    for number in range(10):
        yield number


@pytest.fixture
def thread():
    made = LoopThread("test")
    yield made
    made.close()


def test_forked_child_gets_error_on_iteration(thread, monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(InvalidArgument, match="fork"):
        next(thread.iterate(numbers()))
    monkeypatch.undo()


def test_iterator_finalised_on_loop_thread_does_not_block_it(thread):
    iterator = thread.iterate(numbers())
    assert next(iterator) == 0

    async def end() -> None:
        iterator.close()  # as the garbage collector may do on any thread

    thread.run(end())
    assert list(thread.iterate(numbers())) == list(range(10))


def test_waiting_caller_gets_error_when_client_closes():
    thread = LoopThread("test")
    begun, raised = threading.Event(), []

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            thread.run(forever())
        except Unavailable as err:
            raised.append(err)

    waiting = threading.Thread(target=wait)
    waiting.start()
    begun.wait(60)
    thread.close()
    waiting.join(60)
    assert raised


def test_call_that_begins_while_client_closes_gets_error(monkeypatch):
    monkeypatch.setattr(loop_thread, "SHUTDOWN_GRACE_S", 0)
    thread = LoopThread("test")
    begun, ending, asked, errors = threading.Event(), threading.Event(), threading.Event(), []

    async def slow_to_end() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await asyncio.get_running_loop().run_in_executor(None, asked.wait, 60)

    async def late() -> None:
        asked.set()
        await asyncio.Event().wait()

    def call(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            thread.run(work())
        except (InvalidArgument, Unavailable) as err:
            errors.append(type(err))
        finally:
            asked.set()

    first = threading.Thread(target=call, args=(slow_to_end,), daemon=True)
    first.start()
    assert begun.wait(60)
    closing = threading.Thread(target=thread.close, daemon=True)
    closing.start()
    assert ending.wait(60)
    second = threading.Thread(target=call, args=(late,), daemon=True)
    second.start()
    for each in (closing, first, second):
        each.join(60)
    assert errors[0] is InvalidArgument, "the late call was accepted and never ends"
    assert len(errors) == 2


def test_thread_that_closes_second_waits_for_first():
    thread = LoopThread("test")
    closers = [threading.Thread(target=thread.close, daemon=True) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(60)
    assert not any(closer.is_alive() for closer in closers)


def test_released_file_range_reads_unchanged_before_and_after_sync(tmp_path):
    file = SystemFiles().open_append(str(tmp_path / "f"))
    data = bytes(range(256)) * 1024
    file.append([data])
    file.sync(data_only=False)
    file.release()
    file.append([b"not synced"])
    file.release()
    file.append([b", then more"])
    file.close()
    assert (tmp_path / "f").read_bytes() == data + b"not synced, then more"


async def seven() -> int:
    return 7


def test_call_while_the_interpreter_exits_is_refused_and_does_not_wait(thread, monkeypatch):
    """As in `__del__` of an object of a module: daemon threads no longer run then."""
    items = thread.iterate(numbers())
    assert next(items) == 0
    with monkeypatch.context() as exiting:
        exiting.setattr(sys, "is_finalizing", lambda: True)
        for call in (lambda: thread.run(seven()), lambda: thread.hand_over(print, 1)):
            with pytest.raises(InvalidArgument, match=r"interpreter exits.*not in __del__"):
                call()
        items.close()
        thread.close()
    assert thread.run(seven()) == 7  # close did nothing
