"""Memory that a failed call used is freed with its error, not by a later garbage collection.

A future has its error, whose traceback has the frames of all that it passed; one of them that still has
the future keeps them all. The garbage collector counts objects, not the bytes of arrays: a server whose
flushes failed grew with each attempt.
"""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from nyala.env.loop_thread import LoopThread
from nyala.env.tasks import Lane, LoopTasks, shielded
from nyala.env.write_behind import BUFFER_BYTES, WriteBehindFile


class Rows:
    """Stands for arrays that a call uses."""


used: list[weakref.ref[Rows]] = []


def fail() -> None:
    rows = Rows()
    used.append(weakref.ref(rows))
    raise OSError(28, "no space left on device")


async def turn() -> None:
    """Let the loop begin its next turn."""
    next_one = asyncio.Event()
    asyncio.get_running_loop().call_soon(next_one.set)
    await next_one.wait()


async def fail_later() -> None:
    await turn()
    fail()


async def in_lane(lane: Lane, brief: bool) -> list[Rows]:
    tasks = LoopTasks(compute_threads=1)
    with pytest.raises(OSError, match="no space left"):
        await (tasks.run_brief if brief else tasks.run)(lane, fail)
    try:
        for _ in range(2):  # the thread, and the step of the loop that raised the error, go on
            await tasks.run(lane, int)
        return kept()
    finally:
        await tasks.close()


async def in_shielded_work() -> list[Rows]:
    with pytest.raises(OSError, match="no space left"):
        await shielded(fail_later())
    await turn()  # the step of the loop that raised the error ends
    return kept()


def in_write_behind() -> list[Rows]:
    def write() -> None:
        rows = Rows()
        used.append(weakref.ref(rows))
        file = WriteBehindFile(FullDisk())
        for _ in range(3):
            file.append([bytes(BUFFER_BYTES)])

    with pytest.raises(OSError, match="no space left"):
        write()
    return kept()


def on_loop_thread() -> list[Rows]:
    thread = LoopThread("test")
    with pytest.raises(OSError, match="no space left"):
        thread.run(fail_later())
    try:
        return kept()
    finally:
        thread.close()


def kept() -> list[Rows]:
    """Return what was used and is not freed."""
    assert used
    return [rows for u in used if (rows := u()) is not None]


class FullDisk:
    """A file whose disk is full."""

    def append(self, buffers: object) -> int:
        raise OSError(28, "no space left on device")

    def sync(self, *, data_only: bool) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    used.clear()
    gc.collect()
    gc.disable()
    yield
    gc.enable()


CALLS: dict[str, Callable[[], list[Rows]]] = {
    "lane COMPUTE": lambda: asyncio.run(in_lane(Lane.COMPUTE, False)),
    "lane APPLY": lambda: asyncio.run(in_lane(Lane.APPLY, False)),
    "brief call in lane APPLY": lambda: asyncio.run(in_lane(Lane.APPLY, True)),
    "shielded work": lambda: asyncio.run(in_shielded_work()),
    "write-behind file": in_write_behind,
    "call of a client": on_loop_thread,
}


@pytest.mark.parametrize("call", CALLS)
def test_what_a_failed_call_used_is_freed_with_its_error(call):
    assert CALLS[call]() == []
