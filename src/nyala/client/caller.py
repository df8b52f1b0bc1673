"""Callers: a coroutine on the client's loop, or a thread that blocks.

A call of the client is written once, as a coroutine over a `Caller`. `OnLoop` awaits what the call needs;
the caller of a thread (`calls/thread_caller.py`) blocks instead, so that the coroutine of the call never
suspends, and `finished` runs it to its end in that thread. So the data of a write are converted, and
iterators are read, in the thread that makes the call.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from nyala.common.errors import OutcomeUnknown, Unavailable
from nyala.env.tasks import ClosedDuringCall, Lane, Tasks

T = TypeVar("T")
CANCELLED = "this call was cancelled: what it changes may have taken effect, or may yet"


class Signal(Protocol):
    """An event that is set once, on the client's loop."""

    def set(self) -> None:
        """Set the event."""
        ...

    async def wait(self) -> None:
        """Wait for the event.

        Raises:
            ClosedDuringCall: the client was closed meanwhile.
        """
        ...


class Caller(Protocol):
    """The thread or the coroutine that makes a call of the client."""

    @property
    def suspends(self) -> bool:
        """True for a coroutine, which can await what the user gives."""
        ...

    @property
    def ended(self) -> bool:
        """True if the client was closed, and runs nothing any more."""
        ...

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that changes nothing on the client's loop, and return its result.

        Raises:
            Unavailable: the client was closed meanwhile.
        """
        ...

    async def change(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`, for a coroutine that changes something.

        Raises:
            OutcomeUnknown: the client was closed meanwhile.
        """
        ...

    async def finish(self, work: Coroutine[Any, Any, object]) -> None:
        """As `run`, for a coroutine that continues if the caller is interrupted, as a release does."""
        ...

    async def acquire(
        self, begin: Callable[[], Coroutine[Any, Any, T]], release: Callable[[T], Coroutine[Any, Any, object]]
    ) -> T:  # fmt: skip
        """As `run`; what was acquired is released if the caller is interrupted as it arrives.

        Args:
            begin: returns the coroutine. It releases by itself what it holds when it is cancelled.
            release: releases a result.
        """
        ...

    async def compute(self, fn: Callable[..., T], *args: Any) -> T:
        """Run a function that takes long, or that is the user's own, off the client's loop."""
        ...

    def signal(self) -> Signal:
        """Return an event for which this caller waits."""
        ...

    def hand_over(self, take: Callable[[T], object], item: T) -> None:
        """Have the loop run `take(item)`.

        Args:
            take: begins the work.
            item: its argument.

        Raises:
            InvalidArgument: the client is closed.
        """
        ...

    def iterate(self, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Yield the items of a generator that runs on the client's loop."""
        ...

    def join(self) -> None:
        """Wait until no task of a closed client runs any more."""
        ...


class LoopSignal:
    """A `Signal` for a coroutine of the loop."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def set(self) -> None:
        """Set the event; nothing happens if the coroutine was cancelled."""
        if not self._done.done():
            self._done.set_result(None)

    async def wait(self) -> None:
        """Wait for the event."""
        await self._done


class OnLoop:
    """The `Caller` of a coroutine on the client's loop, which is cancelled in place of being interrupted.

    Args:
        tasks: of the client.
    """

    suspends = True
    ended = False  # a closed client ends its calls by itself

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine."""
        return await work

    async def change(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`; a cancellation gets a note that the change may have happened."""
        try:
            return await work
        except ClosedDuringCall as err:
            raise closed_meanwhile(sent=True) from err
        except asyncio.CancelledError as err:
            err.add_note(CANCELLED)
            raise

    async def finish(self, work: Coroutine[Any, Any, object]) -> None:
        """Await a coroutine that goes on if this caller is cancelled."""
        await asyncio.shield(self._tasks.spawn(work, "end of a call"))

    async def acquire(
        self, begin: Callable[[], Coroutine[Any, Any, T]], release: Callable[[T], Coroutine[Any, Any, object]]
    ) -> T:  # fmt: skip
        """Await a coroutine; see `Caller.acquire`. A cancellation cannot come between it and its result.

        Args:
            begin: returns the coroutine.
            release: not needed.
        """
        return await begin()

    async def compute(self, fn: Callable[..., T], *args: Any) -> T:
        """Run a function in the lane COMPUTE."""
        return await self._tasks.run(Lane.COMPUTE, fn, *args)

    def signal(self) -> LoopSignal:
        """Return an event."""
        return LoopSignal()

    def hand_over(self, take: Callable[[T], object], item: T) -> None:
        """Run `take(item)`."""
        take(item)

    async def iterate(self, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Yield the items of a generator, which ends with this one."""
        async with aclosing(items):
            async for item in items:
                yield item

    def join(self) -> None:
        """Return: the tasks of the client end on this loop."""


def finished(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, because its caller is a thread; return its result."""
    try:
        call.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    call.close()
    raise AssertionError("a call of a thread has to block, and not to suspend")


def closed_meanwhile(*, sent: bool) -> OutcomeUnknown | Unavailable:
    """Return the error of a call whose client was closed.

    Args:
        sent: a server may have received the rows.
    """
    if sent:
        return OutcomeUnknown(
            "the client was closed while this call was under way; what it wrote may or may not have taken "
            "effect"
        )
    return Unavailable("the client was closed before this call was sent; nothing took effect")
