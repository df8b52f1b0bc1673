"""A coordinator of the model: the real `OperationLog` and `OwnSteps`, stopped at each thing that they await.

Task 0 takes requests, task 1 follows the log, and the others are operations, which may outlive the request.

What a process awaits is a `Call`; what it has been answered so far determines it. A process of the model is
therefore the number of a sequence of answers. Each sequence is executed once.
"""

import asyncio
from asyncio.events import _set_running_loop  # as a loop does that is no subclass of asyncio's
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from nyala.client.journal.builder import StepParts
from nyala.client.journal.delivery import StepOutcome
from nyala.client.journal.items import Entry, Event, Invalidated
from nyala.common.errors import NotFound, NotReady, NyalaError, Rejected, Unavailable
from nyala.recipes.election import Election, HeldLeadership, Phase
from nyala.recipes.operations.log import OperationLog
from nyala.recipes.operations.operation import Operation
from nyala.recipes.own_steps import OwnSteps
from nyala.recipes.records import ElectionSettings

LOG = "log"
SETTINGS = ElectionSettings(LOG, "process", "", 4_000_000_000, 4_000_000_001)
MAIN, FOLLOWER = 0, 1


class Call(NamedTuple):
    """The call that a process awaits.

    Attributes:
        kind: "command", "last", "entries", "tail", "step", or "act".
        content: of it, without ids of objects.
    """

    kind: str
    content: tuple[Any, ...] = ()

    def __await__(self) -> Generator["Call", Any, Any]:
        """Stop the process until it is answered; an exception is raised there."""
        answer = yield self
        if isinstance(answer, Failure):
            raise answer.error("of the model", dict(answer.details))
        return answer


class Failure(NamedTuple):
    """The answer of a call that fails."""

    error: type[NyalaError]
    details: tuple[tuple[str, str], ...] = ()


class Change(NamedTuple):
    """The change of a step: an entry, or none, and the entries that become invalid."""

    data: bytes | None
    stale: tuple[int, ...]


class Request(NamedTuple):
    """A request to the server: one action of an operation."""

    epoch: int
    kind: str
    payload: bytes


INTERRUPT = "interrupt"
"""Answer of a task whose caller is interrupted, whatever it awaits."""


class Journal:
    """The calls of `JournalCoroutines` that the recipes use.

    Args:
        spawn: starts a task.
    """

    def __init__(self, spawn: Callable[[Coroutine[Any, Any, object], str], None]) -> None:
        tasks = SimpleNamespace(sleep_ms=_no_time, spawn=spawn)
        self.env = SimpleNamespace(clock=SimpleNamespace(monotonic_us=lambda: 0), tasks=tasks)

    def builder(self) -> StepParts:
        """Return a step."""
        return StepParts("j")

    async def step(
        self, conditions: Sequence[Any], changes: Sequence[Any], *_: object, **__: object
    ) -> StepOutcome:
        """Execute a step of a leader: its two conditions, and one change."""
        key, last = conditions
        (change,) = changes
        if change.HasField("append"):
            made = Change(change.append.data, tuple(change.append.invalidates))
        else:
            made = Change(None, tuple(change.invalidate.ids))
        version = key.key_version.version
        found: int = await Call("step", (version, last.log_last.id, made))
        return StepOutcome((found,), 0)

    async def last_id(self, _: str) -> int:
        """Return the id of the log's last change."""
        found: int = await Call("last")
        return found

    async def entries(self, _: str) -> AsyncIterator[list[Entry]]:
        """Yield the valid entries, in one page."""
        yield list(await Call("entries"))

    def tail(self, _: str, after: int) -> "Tail":
        """Return what changes."""
        return Tail(after)


class Tail:
    """Pages of the changes of the log after one; no generator, since it is never closed."""

    def __init__(self, after: int) -> None:
        self._after = after

    def __aiter__(self) -> "Tail":
        return self

    async def __anext__(self) -> list[Event]:
        found: tuple[Entry | Invalidated, ...] = await Call("tail", (self._after,))
        self._after = found[-1].id
        return list(found)

    async def aclose(self) -> None:
        """End it."""


async def _no_time(_: int) -> None: ...


def _unsent(*_: object) -> StepOutcome:
    raise AssertionError("the step is sent by its journal")


# ---- the service ---------------------------------------------------------------------------------------


class Put(Operation):
    """Has the server own a name; the payload is the name, and the number of the request.

    Args:
        names: the local state: the number of the request that put each name.
    """

    kind = "put"

    def __init__(self, names: dict[bytes, bytes]) -> None:
        self.names = names

    def compute(self, request: bytes) -> bytes:
        """See `Operation.compute`."""
        return request

    def apply(self, payload: bytes) -> None:
        """See `Operation.apply`."""
        name, number = payload.split()
        self.names[name] = number

    def objects(self, payload: bytes) -> Iterable[str]:
        """See `Operation.objects`."""
        return [payload.split()[0].decode()]

    def actions(self, payload: bytes, epoch: int) -> Sequence[Callable[[], Any]]:
        """See `Operation.actions`."""
        return [partial(act, Request(epoch, self.kind, payload))]


class Remove(Put):
    """Has the server own a name no more; nothing describes it then."""

    kind = "remove"

    def compute(self, request: bytes) -> bytes:
        """See `Operation.compute`."""
        if request.split()[0] not in self.names:
            raise NotFound("no such name")
        return request

    def apply(self, payload: bytes) -> None:
        """See `Operation.apply`."""
        self.names.pop(payload.split()[0], None)

    def result(self, payload: bytes) -> bytes | None:
        """See `Operation.result`."""
        return None


async def act(request: Request) -> None:
    """Send a request to the server."""
    await Call("act", request)


@dataclass(frozen=True, slots=True)
class Code:
    """The code of a process; variants with mistakes are for tests of the model.

    Attributes:
        log: class of its operations.
        kinds: the kinds of operations.
        calls_late: actions are carried out after the end of their operation.
    """

    log: type[OperationLog] = OperationLog
    kinds: tuple[type[Put], ...] = (Put, Remove)
    calls_late: bool = False


# ---- the process ---------------------------------------------------------------------------------------


class Running:
    """A process in execution.

    Args:
        code: what it executes.
        follows: it follows the log too.

    Attributes:
        calls: what its tasks await; None: the task has ended.
        names: its state.
        leads: it has replayed, and takes requests.
    """

    def __init__(self, code: Code, *, follows: bool) -> None:
        self.names: dict[bytes, bytes] = {}
        self.leads = False
        kinds = [kind(self.names) for kind in code.kinds]
        self._late: list[Any] | None = [] if code.calls_late else None
        self._journal = cast("Any", Journal(self._spawn))
        self._log = code.log(self._journal, LOG, kinds, self._retract, self._call)
        self._tasks: list[Any] = [self._main(), self._log.follow() if follows else None]
        self._contexts: list[Context] = [copy_context(), copy_context()]
        self.calls: list[Any] = [None, None]
        for task in (MAIN, FOLLOWER):
            self._run(task, None)

    def _spawn(self, work: Coroutine[Any, Any, object], _: str) -> None:
        self._tasks.append(work)
        self._contexts.append(copy_context())
        self.calls.append(BEGINS)

    def _retract(self, name: str) -> None:
        self.names.pop(name.encode(), None)

    async def _call(self, fn: Callable[..., Any], *args: Any) -> Any:
        if self._late is not None and isinstance(fn, partial):
            self._late.append(fn)
            return None
        found = fn(*args)
        return await found if asyncio.iscoroutine(found) else found

    async def _main(self) -> None:
        version = await Call("command")
        election = Election(b"", 4_000_000_000_000, 4_000_000_000_001, max, Phase.LEADING)
        election.leadership = HeldLeadership(version, version - 1, 0)
        steps = OwnSteps(self._journal, SETTINGS, election, lambda: None)
        while True:
            try:
                await self._log.take_over(steps)
                break
            except asyncio.CancelledError:  # interrupted: it is called again
                continue
        while True:
            self.leads = True
            kind, request = await Call("command")
            self.leads = False
            try:
                await self._log.execute(steps, kind, request)
                for action in self._late or ():
                    await action()
            except (Rejected, Unavailable, NotReady, asyncio.CancelledError):
                continue

    @property
    def failed(self) -> bool:
        """True if an operation has failed, and is owed."""
        asked = self._log.pending()
        try:
            asked.send(None)
        except StopIteration as found:
            return bool(found.value)
        raise AssertionError("pending() awaits something")

    def answer(self, task: int, answer: Any) -> None:
        """Let a task go on to the next thing that it awaits."""
        self._run(task, answer)
        while ready := [n for n, waited in enumerate(self.calls) if _ready(waited)]:
            self._run(ready[0], None)

    def _run(self, task: int, answer: Any) -> None:
        if self._tasks[task] is None:
            return
        _set_running_loop(_LOOP)
        step = self._tasks[task].send
        if answer == INTERRUPT:
            step, answer = self._tasks[task].throw, asyncio.CancelledError()
        try:
            self.calls[task] = self._contexts[task].run(step, answer)
        except (StopIteration, NyalaError):  # it has lost the leadership
            self.calls[task] = self._tasks[task] = None
        finally:
            _set_running_loop(None)


BEGINS = "begins"
"""Call of a task that was not run yet."""


def _ready(waited: Any) -> bool:
    """Return whether a task can go on without an answer: it begins, or the lock or an operation is done."""
    return waited is BEGINS or (isinstance(waited, asyncio.Future) and waited.done())


class _Loop:
    """Makes the futures of locks; `Running` looks at them itself."""

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=_LOOP)

    def call_soon(self, *_: Any, **__: Any) -> None: ...

    def get_debug(self) -> bool:
        return False


_LOOP: Any = _Loop()


class Seen(NamedTuple):
    """A process between two answers.

    Attributes:
        calls: what its tasks await; None: the task waits for the lock, or has ended.
        names: its state.
        leads: it takes a request now, and no operation is under way.
        waits: task that the next answer is for: that of the operation under way, or the one with requests.
        failed: the last request has failed, and is owed.
        ended: it has lost the leadership.
    """

    calls: tuple[Call | None, ...]
    names: tuple[tuple[bytes, bytes], ...]
    leads: bool
    waits: int
    failed: bool
    ended: bool


class Processes:
    """All sequences of answers, numbered; 0 is the process that has just started.

    Args:
        code: see `Running`.
        follows: see `Running`.
    """

    def __init__(self, code: Code, *, follows: bool) -> None:
        self._make = partial(Running, code, follows=follows)
        self._numbers: dict[tuple[int, int, Any], int] = {}
        self._before: list[tuple[int, int, Any]] = [(-1, 0, None)]
        first = self._make()
        self._live: dict[int, Running] = {0: first}
        self.seen: list[Seen] = [_seen(first)]

    def after(self, number: int, task: int, answer: Any) -> int:
        """Return the process that has got one answer more."""
        key = number, task, answer
        found = self._numbers.get(key)
        if found is None:
            running = self._live.pop(number, None) or self._again(number)
            running.answer(task, answer)
            found = self._numbers[key] = len(self._before)
            self._before.append((number, task, answer))
            self._live[found] = running
            self.seen.append(_seen(running))
        return found

    def _again(self, number: int) -> Running:
        answers = []
        while number:
            number, task, answer = self._before[number]
            answers.append((task, answer))
        running = self._make()
        for task, answer in reversed(answers):
            running.answer(task, answer)
        return running


def _seen(running: Running) -> Seen:
    calls = tuple(c if isinstance(c, Call) else None for c in running.calls)
    ended = running.calls[MAIN] is None
    under_way = [n for n, call in enumerate(calls) if n > FOLLOWER and call is not None]
    waits = under_way[0] if under_way else MAIN
    leads = running.leads and not under_way
    names = tuple(sorted(running.names.items()))
    return Seen(calls, names, leads, waits, running.failed, ended)
