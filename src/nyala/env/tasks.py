"""Background tasks, lanes for blocking calls, and orderly shutdown.

One event loop owns all replicas of a process. Blocking calls run in a lane: DISK (writes and syncs of the
log, one thread, in order), APPLY (state machines, one thread, in order), COMPUTE (flush, compaction, scans: a
thread pool on immutable inputs), CLOCK (the hybrid clock's ceiling, one thread, because it must not wait for
a sync of the log). The simulator's `Tasks` runs lanes inline at virtual times.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from queue import SimpleQueue
from typing import Any, ParamSpec, Protocol, TypeVar

from nyala.common.errors import Unavailable

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


class ClosedDuringCall(Unavailable):
    """The client was closed during the call, which may have taken effect."""


def closed_during_call() -> ClosedDuringCall:
    """Return the error of a call whose client was closed."""
    return ClosedDuringCall(
        "the client was closed during this call; connect again and repeat the call"
    )


class Lane(Enum):
    """Thread pool lane of a blocking call."""

    DISK = "disk"
    APPLY = "apply"
    COMPUTE = "compute"
    CLOCK = "clock"


class Tasks(Protocol):
    """Concurrency of one process."""

    def spawn(self, work: Coroutine[Any, Any, object], name: str) -> asyncio.Task[object]:
        """Start a background task that this process owns; an exception in it is logged."""
        ...

    async def sleep_ms(self, duration_ms: float) -> None:
        """Sleep."""
        ...

    async def run(self, lane: Lane, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call in a lane and return its result. Lanes but COMPUTE keep the call order."""
        ...

    async def run_brief(
        self, lane: Lane, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As `run`, for a call that should take well below a millisecond.

        It may run on the loop's own thread if the lane is idle and recent calls were short: that saves two
        thread switches.
        """
        ...

    async def run_apart(self, fn: Callable[..., object], *args: object) -> BaseException | None:
        """Run a call of a user in a thread of its own; return what it raised.

        It may take any time, exit, and close this object, which does not wait for it.
        """
        ...

    async def close(self) -> None:
        """Cancel all tasks and wait for them, then for the calls in the lanes."""
        ...


Job = tuple["asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...], dict[str, Any]]
BRIEF_S = 0.001
BRIEF_CALLS = 32
"""Number of consecutive short calls after which the next one may run on the loop's thread."""


class _Thread:
    """A lane with one thread: jobs in order, results set on the loop.

    Faster than an executor, whose futures cost as much as the loop's; each write to the log is a job.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._pending = 0  # jobs without a result; changed on the loop only
        self._brief_calls = 0
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run(
        self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> "asyncio.Future[T]":
        assert self._thread.is_alive(), "the lanes are closed"
        done: asyncio.Future[T] = self._loop.create_future()
        self._pending += 1
        self._jobs.put((done, fn, args, kwargs))
        return done

    async def run_brief(
        self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> T:
        def timed() -> T:
            began = time.perf_counter()
            try:
                return fn(*args, **kwargs)
            finally:
                self._brief_calls = (
                    self._brief_calls + 1 if time.perf_counter() - began < BRIEF_S else 0
                )

        if self._brief_calls >= BRIEF_CALLS and not self._pending:
            return timed()  # nothing else runs in the lane, which gets its jobs from this thread
        return await self.run(timed, (), {})

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            done, fn, args, kwargs = job
            result, error = None, None
            if not done.cancelled():  # cancelled before it began: not run
                try:
                    result = fn(*args, **kwargs)
                except BaseException as err:  # the waiting task raises it
                    error = err
            try:
                self._loop.call_soon_threadsafe(self._settle, done, result, error)
            except RuntimeError:  # the loop is closed: no task waits
                return
            del job, done, fn, args, kwargs, result, error  # released before the next job

    def _settle(self, done: "asyncio.Future[T]", result: T, error: BaseException | None) -> None:
        self._pending -= 1
        if done.done():  # cancelled meanwhile
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    async def close(self) -> None:
        self._jobs.put(None)
        await self._loop.run_in_executor(None, self._thread.join)


class LoopTasks:
    """Tasks on the running asyncio loop, lanes on threads. Create it on the loop.

    Args:
        compute_threads: size of the COMPUTE pool.
    """

    def __init__(self, compute_threads: int = 2) -> None:
        self._tasks: dict[asyncio.Task[object], None] = {}
        self._lanes: dict[Lane, _Thread] = {}
        self._compute = ThreadPoolExecutor(compute_threads, "compute")
        self._closed = False

    def spawn(self, work: Coroutine[Any, Any, object], name: str) -> asyncio.Task[object]:
        """Start a background task that this process owns."""
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[object]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (err := task.exception()) is not None:
            log.error("background task %s failed", task.get_name(), exc_info=err)

    async def sleep_ms(self, duration_ms: float) -> None:
        """Sleep in real time.

        Raises:
            ClosedDuringCall: `close` was called: a call that tries again would do so until its deadline.
        """
        await asyncio.sleep(duration_ms / 1000)
        self._check_open()

    async def run(self, lane: Lane, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call on the lane's thread.

        Raises:
            ClosedDuringCall: `close` was called.
        """
        self._check_open()
        if lane is Lane.COMPUTE:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._compute, lambda: fn(*args, **kwargs))
        return await self._thread(lane).run(fn, args, kwargs)

    async def run_brief(
        self, lane: Lane, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a short blocking call in the lane, or on the loop's thread."""
        return await self._thread(lane).run_brief(fn, args, kwargs)

    async def run_apart(self, fn: Callable[..., object], *args: object) -> BaseException | None:
        """Run a call of a user in a thread of its own; return what it raised."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[BaseException | None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(error)

        def work() -> None:
            error: BaseException | None = None
            try:
                fn(*args)
            except BaseException as err:
                error = err
            with contextlib.suppress(RuntimeError):  # the loop is closed: no task waits
                loop.call_soon_threadsafe(settle, error)

        threading.Thread(target=work, name="apart", daemon=True).start()
        return await done

    def _check_open(self) -> None:
        if self._closed:
            raise closed_during_call()

    def _thread(self, lane: Lane) -> _Thread:
        found = self._lanes.get(lane)
        if found is None:
            assert lane is not Lane.COMPUTE, "COMPUTE has many threads"
            found = self._lanes[lane] = _Thread(lane.value)
        return found

    async def close(self) -> None:
        """Cancel all tasks, wait for them, then for the lanes."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        lanes, self._lanes = list(self._lanes.values()), {}
        for thread in lanes:
            await thread.close()
        self._compute.shutdown(wait=True)


async def for_at_most(seconds: float, *tasks: "asyncio.Future[Any]") -> None:
    """Wait until tasks have ended, with or without an error, or for so many seconds; they continue."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.shield(asyncio.gather(*tasks, return_exceptions=True))


async def shielded(work: Awaitable[T], cancelled: Callable[[], None] = lambda: None) -> T:
    """Await work to its end even if the caller is cancelled; the cancellation is raised afterwards."""
    task, stopped = asyncio.ensure_future(work), False
    try:
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                stopped = True
                cancelled()
            except Exception:  # raised below
                assert task.done()
        if stopped:
            task.cancelled() or task.exception()
            raise asyncio.CancelledError
        return task.result()
    finally:
        del task  # its error has this frame, and so all that the work used
