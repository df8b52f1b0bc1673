"""A simulated process's clock and tasks: lanes run inline, after delays drawn from the seed."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from nyala.env.tasks import Lane
from tests.sim.world.loop import INCARNATION, WALL_START_US, Incarnation, ProcessDied, SimLoop

P = ParamSpec("P")
T = TypeVar("T")
MAX_SLOW_US = 5_000_000.0
_DISK, _APPLY, _CLOCK = Lane.DISK, Lane.APPLY, Lane.CLOCK


@dataclass(slots=True)
class LaneDelays:
    """Times of lane jobs, in virtual microseconds.

    Attributes:
        disk_us: mean of a DISK or CLOCK job.
        apply_us: mean of an APPLY job.
        compute_us: mean of a COMPUTE job.
        slow_rate: probability that a DISK or CLOCK job takes `slow_us` on average instead.
        slow_us: mean of a slow one.
    """

    disk_us: float = 300.0
    apply_us: float = 50.0
    compute_us: float = 500.0
    slow_rate: float = 0.0
    slow_us: float = 300_000.0


class SimClock:
    """Time as one process sees it.

    Args:
        loop: true time.
        skew_us: wall clock minus true time at the start.
        drift_ppm: how much faster both clocks run, and the timers of the process.

    Attributes:
        drift_ppm: as given; it changes while the process does not run.
    """

    def __init__(self, loop: SimLoop, skew_us: int = 0, drift_ppm: int = 0) -> None:
        self._loop = loop
        self.drift_ppm = drift_ppm
        self._lost_us = 0
        self.skew_us = skew_us
        self.far_us = 0  # additional temporary skew

    def monotonic_us(self) -> int:
        """Microseconds since the simulation began, as this process counts them."""
        now = self._loop.now_us() - self._lost_us
        return now + now * self.drift_ppm // 1_000_000 if self.drift_ppm else now

    def timer_us(self, by_us: float) -> float:
        """Return the true time that a timer of this process takes."""
        return by_us * 1_000_000 / (1_000_000 + self.drift_ppm) if self.drift_ppm else by_us

    def lose(self, by_us: int) -> None:
        """Set both clocks back, as those of a virtual machine that was stopped and knows nothing of it."""
        self._lost_us += by_us

    def wall_us(self) -> int:
        """Microseconds since the epoch by this process's clock."""
        return WALL_START_US + self.monotonic_us() + self.skew_us + self.far_us

    def jump(self, by_us: int) -> None:
        """Set the wall clock forward or back."""
        self.skew_us += by_us


class SimTasks:
    """`env.tasks.Tasks` over virtual time. A lane's job takes effect at once, after its delay.

    Args:
        loop: the simulation's loop.
        rng: draws the delays.
        delays: their distribution; may be changed while running.
        clock: the process's, whose rate its timers have; None: true time.
    """

    def __init__(
        self,
        loop: SimLoop,
        rng: random.Random,
        delays: LaneDelays | None = None,
        clock: SimClock | None = None,
    ) -> None:
        self._clock_rate = clock or SimClock(loop)
        self._loop = loop
        self._rng = rng
        self.delays = delays or LaneDelays()
        self._tasks: dict[asyncio.Task[object], None] = {}
        self._disk: deque[Callable[[], None]] = deque()
        self._apply: deque[Callable[[], None]] = deque()
        self._clock: deque[Callable[[], None]] = deque()
        self._busy = 0
        self._idle: list[asyncio.Future[None]] = []
        self.slow_jobs = 0
        self.in_lane = False

    def spawn(self, work: Coroutine[Any, Any, object], name: str) -> asyncio.Task[object]:
        """Start a background task that this process owns."""
        task: asyncio.Task[object] = self._loop.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[object]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (err := task.exception()) is not None:
            self._loop.call_exception_handler({"message": task.get_name(), "exception": err})

    async def sleep_ms(self, duration_ms: float) -> None:
        """Let virtual time pass."""
        await self._loop.delay(self._clock_rate.timer_us(max(duration_ms, 0) * 1000))

    async def run_brief(
        self, lane: Lane, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As `run`."""
        return await self.run(lane, fn, *args, **kwargs)

    async def run(self, lane: Lane, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call inline after a delay; all but COMPUTE keep call order."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._busy += 1

        def job() -> None:
            try:
                self.in_lane = True
                try:
                    result = fn(*args, **kwargs)
                finally:
                    self.in_lane = False
            except ProcessDied:
                raise  # unwinds to the loop, which ignores it
            except (Exception, asyncio.CancelledError) as err:  # raised at the waiting caller
                self._done(lane)
                if not future.done():
                    future.set_exception(err)
            else:
                self._done(lane)
                if not future.done():
                    future.set_result(result)

        queue = self._queue(lane)
        if queue is None:
            self._loop.call_later(self._draw_us(lane) / 1e6, job)
        else:
            queue.append(job)
            if len(queue) == 1:
                self._start(lane, job)
        return await future

    async def run_apart(self, fn: Callable[..., object], *args: object) -> BaseException | None:
        """Run a call inline after a delay; return what it raised."""
        await self._loop.delay(self._draw_us(Lane.COMPUTE))
        try:
            fn(*args)
        except ProcessDied:
            raise
        except BaseException as err:
            return err
        return None

    def _queue(self, lane: Lane) -> deque[Callable[[], None]] | None:
        """Return the jobs of a lane that keeps their order; None: COMPUTE does not."""
        if lane is _DISK:
            return self._disk
        if lane is _APPLY:
            return self._apply
        return self._clock if lane is _CLOCK else None

    def _start(self, lane: Lane, job: Callable[[], None]) -> None:
        self._loop.call_later(self._draw_us(lane) / 1e6, job)

    def _done(self, lane: Lane) -> None:
        self._busy -= 1
        queue = self._queue(lane)
        if queue is not None:
            queue.popleft()
            if queue:
                self._start(lane, queue[0])
        if not self._busy:
            for future in self._idle:
                if not future.done():
                    future.set_result(None)
            self._idle.clear()

    def disk_us(self) -> float:
        """Draw the duration of one disk operation."""
        return self._draw_us(_DISK)

    def _draw_us(self, lane: Lane) -> float:
        delays = self.delays
        on_disk = lane is _DISK or lane is _CLOCK
        if on_disk and self._rng.random() < delays.slow_rate:
            self.slow_jobs += 1
            self._loop.trace.counts["slow_sync"] += 1
            return min(max(self._rng.expovariate(1 / delays.slow_us), 1000.0), MAX_SLOW_US)
        other_us = delays.apply_us if lane is _APPLY else delays.compute_us
        mean = delays.disk_us if on_disk else other_us
        return 1 + self._rng.expovariate(1 / mean)

    async def close(self) -> None:
        """Cancel all tasks, wait for them, then for the jobs in the lanes."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._busy:
            future: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(future)
            await future


def current_incarnation() -> Incarnation | None:
    """Return the incarnation whose code is running, or None in the test itself."""
    return INCARNATION.get()
