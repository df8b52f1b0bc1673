"""ThreadCaller: a thread that blocks while the client's loop, in another thread, does the work."""

import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import closing
from typing import Any, TypeVar, cast

from nyala.client.caller import closed_meanwhile
from nyala.env.loop_thread import LoopThread
from nyala.env.tasks import ClosedDuringCall

T = TypeVar("T")


class ThreadSignal:
    """A `Signal` for one thread, cheaper than a future and its condition.

    Args:
        loop: sets it.
    """

    __slots__ = ("_lock", "_loop")

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Set the event. Called once, from any thread."""
        self._lock.release()

    async def wait(self) -> None:
        """Wait for the event, while the loop runs."""
        self._loop.wait(self._is_set)

    def _is_set(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=seconds)


class ThreadCaller:
    """The `Caller` of any thread but the loop's own. Its coroutines never suspend; see `caller.finished`.

    Args:
        loop: runs the client.
    """

    suspends = False

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop

    @property
    def ended(self) -> bool:
        """True if the client was closed."""
        return self._loop.closed

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and wait for its result."""
        return self._loop.run(work)

    async def change(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`, for a coroutine that changes something."""
        try:
            return self._loop.run(work)
        except ClosedDuringCall as err:
            raise closed_meanwhile(sent=True) from err

    async def finish(self, work: Coroutine[Any, Any, object]) -> None:
        """As `run`, for a coroutine that continues if this thread is interrupted."""
        self._loop.finish(work)

    async def acquire(
        self, begin: Callable[[], Coroutine[Any, Any, T]], release: Callable[[T], Coroutine[Any, Any, object]]
    ) -> T:  # fmt: skip
        """As `run`; see `LoopThread.acquire`.

        Args:
            begin: returns the coroutine.
            release: releases a result.
        """
        return self._loop.acquire(begin, release)

    async def compute(self, fn: Callable[..., T], *args: Any) -> T:
        """Run a function in this thread."""
        return fn(*args)

    def signal(self) -> ThreadSignal:
        """Return an event for which one thread waits.

        Raises:
            InvalidArgument: the thread is the loop's own, which the wait would stop; nothing was sent.
        """
        self._loop.check_may_wait()
        return ThreadSignal(self._loop)

    def hand_over(self, take: Callable[[T], object], item: T) -> None:
        """Have the loop run `take(item)`; concurrent threads share a wake-up."""
        self._loop.hand_over(take, item)

    async def iterate(self, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Yield the items of a generator, with one item prefetched."""
        with closing(cast("Any", self._loop.iterate(items))) as found:
            for item in found:
                yield item

    def join(self) -> None:
        """Wait until the thread of the closed loop has ended."""
        self._loop.join()
