"""An event loop in its own thread, which runs coroutines for a synchronous API.

One per client. A forked child of a process that had a client gets an error that says what to do.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar, cast

from nyala.common.errors import InvalidArgument
from nyala.env.tasks import closed_during_call

T = TypeVar("T")
SHUTDOWN_GRACE_S = 1.0
"""Seconds for which tasks may run on at shutdown before they are cancelled."""
JOIN_S = 10.0
"""Maximum wait in seconds for the thread of a stopped loop."""
CHECK_INTERVAL_S = 5.0
"""Interval in seconds at which a waiting thread checks that the loop runs.

All waits have it: Ctrl-C does not end a wait without a time-out where another library has installed a signal
handler that restarts system calls; polars does.
"""
AFTER_FORK = (
    "this process was forked from one that had a client, and gRPC does not work after a fork; start "
    "it with multiprocessing.get_context('spawn'), or fork before the first nyala.connect()"
)
OWN_THREAD = (
    "a callback of a future runs in the client's own thread, which this call would stop until it has ended: "
    "make the call in another thread (an executor), or begin a write whose result is a future (upsert_soon)"
)
AT_EXIT = (
    "the interpreter exits, and the client's thread runs no more: nothing was sent; make the call before the "
    "end of the program, in a with block or in a function for atexit, and not in __del__"
)
_first_pid: list[int] = []
"""Pid of the process that made the first client; in a forked child, that of its parent."""


def check_not_forked() -> None:
    """Check, before a client is made, that this process is not a child of one that had a client.

    Raises:
        InvalidArgument: it is: gRPC's threads do not exist in it, and calls could block forever.
    """
    if not _first_pid:
        _first_pid.append(os.getpid())
    if _first_pid[0] != os.getpid():
        raise InvalidArgument(AFTER_FORK)


class LoopThread:
    """Runs coroutines for callers on other threads.

    Raises:
        InvalidArgument: this process was forked from one that had such a loop: gRPC's threads do not exist in
            the child, and calls could block forever.
    """

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        check_not_forked()
        self._loop = _new_loop()
        self._queue: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._wakeup_pending = False
        # Held while work is handed to the loop, so that `close` ends all work that was accepted. Re-entrant:
        # the garbage collector may close an iterator while its thread holds it.
        self._gate = threading.RLock()
        self._closing = False
        self._ending = threading.Lock()  # held by the thread that closes
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result. Not on the loop's own thread.

        Raises:
            InvalidArgument: called in a forked child, or after `close`.
            ClosedDuringCall: closed by another thread during the call.
        """
        future = self._submit(work)
        try:
            return _result(future)
        except concurrent.futures.CancelledError:
            raise closed_during_call() from None
        finally:  # Ctrl-C, or whatever else a handler of a signal raises
            future.cancel()
            del future  # as in `_result`

    def begin(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Have a coroutine run on the loop; return the future of its result, whose `cancel` ends it.

        Raises:
            InvalidArgument: as `run`.
        """
        return self._submit(work, waits=False)

    def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`, for a coroutine that goes on if the caller is interrupted, as a release does."""
        try:
            return _result(self._submit(work))
        except concurrent.futures.CancelledError:
            raise closed_during_call() from None

    def leave(self, begin: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Have a coroutine run on the loop, without waiting for it; nothing is done after `close`.

        Any thread may call, also the loop's own, and the garbage collector.

        Args:
            begin: returns the coroutine.
        """
        with self._gate if os.getpid() == self._pid else contextlib.nullcontext():
            if not self.closed:
                asyncio.run_coroutine_threadsafe(begin(), self._loop)

    def acquire(
        self, begin: Callable[[], Coroutine[Any, Any, T]], release: Callable[[T], Coroutine[Any, Any, object]]
    ) -> T:  # fmt: skip
        """As `run`; if the caller is interrupted as the result arrives, the result is released.

        Args:
            begin: returns the coroutine. It releases by itself what it holds when it is cancelled.
            release: releases a result.
        """
        acquired: list[T] = []

        async def work() -> None:
            acquired.append(await begin())

        async def undo() -> None:
            for result in acquired:
                await release(result)

        try:
            self.run(work())
        except BaseException:
            with contextlib.suppress(InvalidArgument):  # closed
                self._submit(undo())  # comes after the end of the cancelled work
            raise
        return acquired[0]

    def hand_over(self, take: Callable[[T], object], item: T) -> None:
        """Schedule `take(item)` on the loop; concurrent threads share one wake-up. Nothing is waited for.

        Raises:
            InvalidArgument: as `run`.
        """
        self._check_process()
        with self._gate:
            self._check_open()
            self._queue.append((take, item))
            if not self._wakeup_pending:
                self._wakeup_pending = True
                self._loop.call_soon_threadsafe(self._run_queue)

    def _run_queue(self) -> None:
        self._wakeup_pending = False  # cleared first, so that later items schedule another run
        while self._queue:
            take, item = self._queue.popleft()
            take(item)

    def wait(self, done: Callable[[float], bool]) -> None:
        """Wait until `done(timeout in seconds)` returns true, while the loop runs.

        Raises:
            ClosedDuringCall: closed by another thread during the call.
        """
        while not done(CHECK_INTERVAL_S):
            if not self._thread.is_alive():
                raise closed_during_call()

    @property
    def is_current(self) -> bool:
        """True in the loop's own thread."""
        return threading.current_thread() is self._thread

    def check_may_wait(self) -> None:
        """Check that a call of this thread may wait for the loop.

        Raises:
            InvalidArgument: it is the loop's own thread, which runs a callback.
        """
        if self.is_current:
            raise InvalidArgument(OWN_THREAD)

    def _check_usable(self, *, waits: bool) -> None:
        if waits:
            self.check_may_wait()
        self._check_process()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise InvalidArgument(AFTER_FORK)

    def _check_open(self) -> None:
        if sys.is_finalizing():
            raise InvalidArgument(AT_EXIT)
        if self.closed:
            raise InvalidArgument("this client is closed; call nyala.connect() for a new one")

    def _submit(
        self, work: Coroutine[Any, Any, T], *, waits: bool = True
    ) -> "concurrent.futures.Future[T]":
        try:
            self._check_usable(
                waits=waits
            )  # before the lock: a forked child may find it held for good
            with self._gate:
                self._check_open()
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        except InvalidArgument:
            work.close()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an async iterator, with one item prefetched. Not on the loop's own thread.

        Raises:
            InvalidArgument, ClosedDuringCall: as `run`.
        """

        async def step() -> tuple[bool, T | None]:
            try:
                return True, await anext(items)
            except StopAsyncIteration:
                return False, None

        ahead = self._submit(step())
        try:
            while True:
                more, item = _result(ahead)
                if not more:
                    return
                ahead = self._submit(step())
                yield cast("T", item)
        except concurrent.futures.CancelledError:
            raise closed_during_call() from None
        finally:
            ahead.cancel()
            closing = getattr(items, "aclose", None)
            if closing is not None and not self.closed:
                self._close_items(closing)

    def _close_items(self, close: Callable[[], Awaitable[None]]) -> None:
        with self._gate:
            if self.closed:  # the loop closes its generators itself
                return
            ended = asyncio.run_coroutine_threadsafe(_close_generator(close), self._loop)
        # The garbage collector may close an iterator on the loop's own thread, which cannot wait.
        if threading.current_thread() is not self._thread:
            with contextlib.suppress(concurrent.futures.CancelledError):
                _result(ended)

    @property
    def closed(self) -> bool:
        """True if `close` was called, this is a forked child, or the interpreter exits."""
        return self._closing or os.getpid() != self._pid or sys.is_finalizing()

    def close(self, last: Callable[[], Coroutine[Any, Any, object]] | None = None) -> None:
        """Stop all tasks, the loop and its thread; a second call waits for the first, and does nothing.

        Nor does it do anything in a forked child, and while the interpreter exits.

        New calls are refused from now on. Calls of other threads that have begun end here, at the latest with
        `ClosedDuringCall`.

        Args:
            last: coroutine function that runs before the tasks are stopped.
        """
        if os.getpid() != self._pid or sys.is_finalizing():
            return
        with self._ending:
            if self._loop.is_closed():
                return
            with self._gate:
                self._closing = True
            try:
                if last is not None:
                    _result(asyncio.run_coroutine_threadsafe(last(), self._loop))
            finally:
                _result(asyncio.run_coroutine_threadsafe(_end_all(), self._loop))
                self._loop.call_soon_threadsafe(self._loop.stop)
                self.join()
                if not self._thread.is_alive():
                    self._loop.close()

    def join(self) -> None:
        """Wait, for a limited time, until the thread of a closed loop has ended, with all its tasks."""
        self._thread.join(timeout=JOIN_S)


def _result(future: "concurrent.futures.Future[T]") -> T:
    """Wait for a result. What a handler of a signal raises ends the wait, also if it is a TimeoutError."""
    try:
        while not concurrent.futures.wait((future,), CHECK_INTERVAL_S).done:
            continue
        return future.result()
    finally:
        del future  # its error has this frame and those of the callers


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # Windows has none
        return asyncio.new_event_loop()
    made: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return made


async def _end_all() -> None:
    """Wait briefly for other tasks to end, and cancel the rest.

    A cancelled gRPC call notifies its poller when it is over; the loop must still exist then.
    """
    own = asyncio.current_task()
    others = [t for t in asyncio.all_tasks() if t is not own]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SHUTDOWN_GRACE_S):
            await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


async def _close_generator(close: Callable[[], Awaitable[None]]) -> None:
    """Close an async generator once its current step is cancelled."""
    for _ in range(100):
        try:
            await close()
        except RuntimeError:  # its last step still runs
            await asyncio.sleep(0)
        else:
            return
