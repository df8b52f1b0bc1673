"""An asyncio loop over virtual time, and the incarnations of simulated processes on it.

Time advances only when nothing is ready, straight to the next timer, so that a run's order follows
from its seed alone. Each callback and task belongs to the `Incarnation` in whose context it was made:
callbacks of a dead one never run, those of a paused one wait. Use `run(main)`.
"""

import asyncio
import contextlib
import contextvars
import functools
import gc
import heapq
import inspect
import random
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from tests.salt import generator
from tests.sim.world.swallowed import swallowed
from tests.sim.world.trace import Recorder, Trace

T = TypeVar("T")
WALL_START_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
_COLLECT_EVERY = 400_000
_MAX_CLOSES = 100


class ProcessDied(BaseException):
    """Unwinds the code of a simulated process that has ended; no product code may catch it."""


class Stuck(AssertionError):
    """No event is left before the end of the run: a task waits forever."""


class Blocked(AssertionError):
    """A running server has blocked its event loop with a disk operation."""


class BudgetSpent(AssertionError):
    """The run used up its events or its virtual time."""


class Incarnation:
    """One run of one process, from a start to a kill or an end.

    Attributes:
        name: of the process, for traces.
        dead: whether it has ended.
        held: whether it is paused.
        stalled: whether a call on its loop waits for a disk.
        paused: whether its callbacks wait, for either reason.
        failures: unhandled exceptions of its tasks and callbacks, and unexpected ones that it logged.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.held = self.stalled = self.paused = False
        self.failures: list[BaseException] = []
        self.waiting: deque[events.Handle] = deque()
        self.arrivals: list[tuple[str, Callable[..., object], tuple[Any, ...]]] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = 64
        self.context = contextvars.copy_context()
        self.context.run(INCARNATION.set, self)

    def inside(self, fn: Callable[..., T], *args: Any) -> T:
        """Call `fn` in this incarnation's context, to which everything that it schedules belongs."""
        return self.context.copy().run(fn, *args)

    def own(self, task: asyncio.Task[Any]) -> None:
        """Add a task, to be closed when this incarnation ends."""
        self._tasks.append(task)
        if len(self._tasks) > self._prune_at:
            self._tasks = [t for t in self._tasks if not t.done()]
            self._prune_at = 2 * len(self._tasks) + 64

    def end(self) -> None:
        """End at once: close every coroutine at its present await."""
        self.dead = True
        self.waiting.clear()
        self.arrivals.clear()
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coro = task.get_coro()
                assert coro is not None
                self.inside(close_quietly, coro)
        self._tasks.clear()

    def failed(self, error: BaseException) -> None:
        """Record an unhandled error, except while coroutines are closed."""
        if not self.dead and not isinstance(error, ProcessDied):
            self.failures.append(error)

    def pause(self) -> None:
        """Stop running callbacks until `resume`; timers that expire meanwhile wait."""
        self.held = self.paused = True

    def stall(self) -> None:
        """Stop running callbacks after this one, which waits for a disk."""
        self.stalled = self.paused = True

    def resume(self, loop: "SimLoop") -> None:
        """Run the pending callbacks in order, then continue."""
        self.held = self.stalled = self.paused = False
        waiting, self.waiting = self.waiting, deque()
        loop.put_first(waiting)


INCARNATION: contextvars.ContextVar[Incarnation | None] = contextvars.ContextVar(
    "LIFE", default=None
)


def close_quietly(coro: Any) -> None:
    """Close a coroutine of a dead incarnation, without effects of its `finally` blocks.

    One that awaits an asynchronous generator within `aclosing` gets an error of that in place of
    GeneratorExit, and may handle it and wait again.
    """
    for _ in range(_MAX_CLOSES):
        with contextlib.suppress(BaseException):  # an error in a dead process is ignored
            coro.close()
        if not inspect.iscoroutine(coro) or inspect.getcoroutinestate(coro) == inspect.CORO_CLOSED:
            return


class _Handle(events.Handle):
    """Callback that runs only while its incarnation runs; otherwise as asyncio's, without its checks."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: Any, context: Any = None) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None

    def _run(self) -> None:
        context = self._context
        incarnation = context.get(INCARNATION)
        if incarnation is not None:
            if incarnation.dead:
                return
            if incarnation.paused:
                incarnation.waiting.append(self)
                return
        try:
            context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as err:  # as in asyncio: the loop continues, the failure is recorded
            self._loop.call_exception_handler({"message": repr(self), "exception": err})


class _Timer(_Handle):
    """Timer in the loop's heap."""

    __slots__ = ("_when",)

    def __init__(self, when: float, callback: Any, args: Any, loop: Any, context: Any) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when

    def when(self) -> float:
        """Return its due time in virtual seconds."""
        return self._when


class SimLoop(asyncio.BaseEventLoop):
    """An event loop whose time is virtual.

    Args:
        max_time_s: virtual time after which the run fails with BudgetSpent.
        max_events: callbacks after which it does.
    """

    def __init__(self, max_time_s: float = 3600.0, max_events: int = 50_000_000) -> None:
        super().__init__()
        self._now_s = 0.0
        self._now_us = 0
        self._clock_resolution = 1e-9
        self._timers: list[tuple[float, int, _Timer]] = []
        self._made = 0
        self._collect_at = _COLLECT_EVERY
        self._max_time_s = max_time_s
        self._max_events = max_events
        self._generators: dict[int, Incarnation | None] = {}  # by address; weak references go first
        self.events = 0
        self.failures: list[BaseException] = []
        self.blocked: list[str] = []
        self.after_step: Callable[[], None] | None = None
        self.trace = Trace()
        self.trace.now_us = self.now_us
        self.set_debug(False)
        self.set_task_factory(_make_task)
        self.set_exception_handler(_note_failure)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def now_us(self) -> int:
        """Virtual microseconds since the loop was made."""
        return self._now_us

    def advance(self, timeout_s: float) -> None:
        """Advance time; called when nothing is ready. An error of `after_step` ends the run."""
        if self.after_step is not None:
            self.after_step()
        if timeout_s > 0:
            self._now_s += timeout_s
            self._now_us = round(self._now_s * 1e6)
        if self._now_s > self._max_time_s:
            self._spent()
        if self.events >= self._collect_at:
            self._collect_at = self.events + _COLLECT_EVERY
            gc.collect()

    def _spent(self) -> None:
        raise BudgetSpent(f"{self.events} events and {self._now_s:.1f} s of virtual time")

    def delay(self, duration_us: float) -> asyncio.Future[None]:
        """Return a future that is done after some virtual microseconds."""
        future: asyncio.Future[None] = self.create_future()
        self.call_at(self._now_s + duration_us / 1e6, _finish, future)
        return future

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> events.Handle:
        """Schedule a callback for this moment."""
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def put_first(self, handles: deque[events.Handle]) -> None:
        """Run these before all ready callbacks."""
        self._ready.extendleft(reversed(handles))  # type: ignore[attr-defined]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        """Schedule a callback at a virtual time."""
        timer = _Timer(when, callback, args, self, context)
        self._made += 1
        heapq.heappush(self._timers, (when, self._made, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        """Schedule a callback after some virtual seconds."""
        when = self._now_s + delay
        timer = _Timer(when, callback, args, self, context)
        self._made += 1
        heapq.heappush(self._timers, (when, self._made, timer))
        return timer

    def _run_once(self) -> None:
        """Run ready callbacks until the loop is stopped; without any, advance time to the next timer."""
        ready, timers = self._ready, self._timers  # type: ignore[attr-defined]
        take, pop = ready.popleft, heapq.heappop
        while True:
            while timers and timers[0][2]._cancelled:
                pop(timers)
            if not ready and not self._stopping:  # type: ignore[attr-defined]
                if not timers:
                    raise Stuck(f"nothing is left to happen at {self.time():.6f} s of virtual time")
                self.advance(timers[0][0] - self._now_s)
            due = self._now_s + 1e-9
            while timers and timers[0][0] < due:
                ready.append(pop(timers)[2])
            self.events += len(ready)
            if self.events > self._max_events:
                self._spent()
            for _ in range(len(ready)):
                handle = take()
                if not handle._cancelled:
                    handle._run()
            if self._stopping:  # type: ignore[attr-defined]
                return

    def _asyncgen_firstiter_hook(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[id(generator)] = INCARNATION.get()

    def _asyncgen_finalizer_hook(self, generator: AsyncGenerator[Any, Any]) -> None:
        incarnation = self._generators.pop(id(generator), None)
        if self.is_closed() or (incarnation is not None and incarnation.dead):
            with (
                self._current()
            ):  # what it awaits would report, when it is freed, that it is not finished
                close_quietly(getattr(generator, "ag_await", None))
            return
        closing = generator.aclose()
        if incarnation is None:
            self.create_task(closing)
        else:
            incarnation.inside(self.create_task, closing)

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Be the running loop in the block: what ended code begins as it is closed belongs to this loop."""
        running = events._get_running_loop()
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(running)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        """Refuse threads, which a simulation cannot have."""
        raise AssertionError(f"{func} would run in a thread; use env.tasks.run")

    def _check_closed(self) -> None:
        """Permit calls after the end: garbage of the run may schedule callbacks, which never run."""

    def _write_to_self(self) -> None:
        """Do nothing: no thread waits for the loop."""

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no sockets."""


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _make_task(loop: Any, coro: Any, context: Any = None) -> asyncio.Task[Any]:
    incarnation = (context or contextvars.copy_context()).get(INCARNATION)
    ended = loop.is_closed() or (incarnation is not None and incarnation.dead)
    if ended:
        close_quietly(coro)
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context)
    if ended:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    elif incarnation is not None:
        incarnation.own(task)
    return task


def _note_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, SimLoop)
    error = context.get("exception") or AssertionError(str(context.get("message")))
    _fail(loop, error)


def _note_unread(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Record the exception of a task that was not awaited; pending tasks may be collected at the end."""
    if "exception" in context:
        _note_failure(loop, context)


def _fail(loop: SimLoop, error: BaseException) -> None:
    """Note an exception for which the run fails."""
    incarnation = INCARNATION.get()
    if (incarnation is None or not incarnation.dead) and not isinstance(error, ProcessDied):
        loop.failures.append(error)
    if incarnation is not None:
        incarnation.failed(error)


def run(
    main: Callable[["SimLoop"], Coroutine[Any, Any, T]],
    *,
    max_time_s: float = 3600.0,
    max_events: int = 50_000_000,
    recorder: Recorder | None = None,
) -> T:
    """Run `main(loop)` over virtual time and return its result; a recorder receives every event.

    Raises:
        Stuck: no event is left although `main` is not done.
        BudgetSpent: virtual time or events ran out.
        Blocked: code of a running server called the disk from its loop; the message has the stack.
        BaseException: the first unhandled exception, or the first unexpected one that the product logged.
    """
    collecting = gc.isenabled()
    gc.collect()
    gc.freeze()  # exclude present objects, mostly modules, from the next run's collection
    gc.disable()  # collections at other times would close generators at other times
    loop = SimLoop(max_time_s, max_events)
    loop.trace.recorder = recorder
    try:
        with swallowed(functools.partial(_fail, loop)):
            result = loop.run_until_complete(main(loop))
            loop.set_exception_handler(_note_unread)
            gc.collect()  # a task that is not awaited reports its exception when it is collected
        if loop.failures:
            raise loop.failures[0]
        if loop.blocked:
            raise Blocked(loop.blocked[0])
        return result
    finally:
        loop.close()
        _finish_tasks(loop)
        if collecting:
            gc.enable()


def _finish_tasks(loop: SimLoop) -> None:
    with loop._current():
        for task in sorted(asyncio.all_tasks(loop), key=lambda t: t.get_name()):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coro = task.get_coro()
            assert coro is not None
            close_quietly(coro)


def seeded(seed: int, *names: object) -> random.Random:
    """A generator of its own for one purpose, so that one part's draws do not shift another's."""
    return generator(f"{seed}/" + "/".join(map(str, names)))
