"""Named background tasks, the pools for blocking work, and orderly shutdown.

One event loop owns all replicas of a process. Blocking work goes to a lane:
DISK (WAL writes and syncs, one thread, in order), APPLY (state machines, one thread, in order),
COMPUTE (flush, compaction, scans: a small pool on immutable inputs).
The simulator's `Tasks` runs lanes inline at virtual times.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


class Lane(Enum):
    """Where a blocking call runs."""

    DISK = "disk"
    APPLY = "apply"
    COMPUTE = "compute"


class Tasks(Protocol):
    """Concurrency of one process."""

    def spawn(self, work: Coroutine[Any, Any, object], name: str) -> asyncio.Task[object]:
        """Start a background task that this process owns; an exception in it is logged."""
        ...

    async def sleep_ms(self, duration_ms: float) -> None:
        """Let time pass."""
        ...

    async def run(self, lane: Lane, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call in a lane and return its result. DISK and APPLY keep call order."""
        ...

    async def close(self) -> None:
        """Cancel all tasks, wait for them, then wait for what runs in the lanes."""
        ...


class LoopTasks:
    """Tasks on the running asyncio loop, lanes on threads.

    Args:
        compute_threads: size of the COMPUTE pool.
    """

    def __init__(self, compute_threads: int = 2) -> None:
        self._tasks: dict[asyncio.Task[object], None] = {}
        self._pools = {
            Lane.DISK: ThreadPoolExecutor(1, "disk"),
            Lane.APPLY: ThreadPoolExecutor(1, "apply"),
            Lane.COMPUTE: ThreadPoolExecutor(compute_threads, "compute"),
        }

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
        """Let real time pass."""
        await asyncio.sleep(duration_ms / 1000)

    async def run(self, lane: Lane, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call on the lane's thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pools[lane], lambda: fn(*args, **kwargs))

    async def close(self) -> None:
        """Cancel all tasks, wait for them, then for the lanes."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pool in self._pools.values():
            pool.shutdown(wait=True)
