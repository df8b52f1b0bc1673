"""Combining of steps: steps of concurrent callers for one journal are sent as one operation.

An idle journal adds no delay: steps of one loop iteration are sent at its end. While a request is in flight,
further steps wait until they are as many as it carries, or until it is answered, and form the next request.
Each step takes effect by itself, and each caller gets the outcome of its own. Used on the client's loop only.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from nyala.client.caller import closed_meanwhile
from nyala.client.journal.locations import OpenJournal
from nyala.client.request_queue import RequestQueue
from nyala.common.errors import NyalaError, OutcomeUnknown, Rejected, SessionExpired, TimedOut
from nyala.env.env import Env
from nyala.wire.proto import journal_pb2 as pb

MAX_STEPS = 64
"""Maximum number of steps of one request."""
MAX_BYTES = 64 << 10
"""Maximum size of a step that is combined, and of a request of several steps, in bytes."""
GRACE_MS = 100
"""Time beyond a caller's deadline in which its request may end with a more exact error, in milliseconds."""

Deliver = Callable[
    [OpenJournal, Sequence[pb.JournalStep], int], Awaitable[list[pb.JournalStepResponse]]
]
"""Deliver the steps of one operation; the last argument is the time for it, in milliseconds."""


class _Caller:
    """A step and who waits for it."""

    __slots__ = ("answer", "deadline_us", "journal", "sent", "size", "step")

    def __init__(
        self, journal: OpenJournal, step: pb.JournalStep, size: int, deadline_us: int
    ) -> None:
        self.journal = journal
        self.step = step
        self.size = size
        self.deadline_us = deadline_us
        self.sent = False
        self.answer: asyncio.Future[pb.JournalStepResponse]
        self.answer = asyncio.get_running_loop().create_future()

    def done(self, response: pb.JournalStepResponse) -> None:
        if not self.answer.done():
            self.answer.set_result(response)

    def failed(self, err: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(err)
            self.answer.exception()  # so that it is not reported if the caller has ended without waiting


_Key = tuple[str, bool]
"""Tablet, and whether the steps add to it: a server may throttle those that do."""


class StepCombiner:
    """Steps of one client.

    Args:
        env: clock and tasks.
        deliver: see `Deliver`.
    """

    def __init__(self, env: Env, deliver: Deliver) -> None:
        self._env = env
        self._deliver = deliver
        self._queues: dict[_Key, RequestQueue[_Caller]] = {}
        self._due: set[_Key] = set()

    async def execute(
        self, journal: OpenJournal, step: pb.JournalStep, timeout_ms: int
    ) -> pb.JournalStepResponse:
        """Execute a step; it may share an operation with others.

        Args:
            journal: journal of the step.
            step: conditions and changes.
            timeout_ms: for the answer.

        Raises:
            NyalaError: as `StepDelivery.execute`.
        """
        size = step.ByteSize()
        if size > MAX_BYTES:
            return (await self._deliver(journal, [step], timeout_ms))[0]
        deadline_us = self._env.clock.monotonic_us() + timeout_ms * 1000
        caller = _Caller(journal, step, size, deadline_us)
        key = journal.tablet.id, _adds(step)
        self._queues.setdefault(key, RequestQueue(fill=True)).enqueue(caller)
        if key not in self._due:
            self._due.add(key)
            asyncio.get_running_loop().call_soon(self._send_due, key)
        try:
            async with asyncio.timeout((timeout_ms + GRACE_MS) / 1000):
                return await caller.answer
        except TimeoutError:
            raise _late(caller) from None

    def _send_due(self, key: _Key) -> None:
        self._due.discard(key)
        self._send_ready(key)

    def _send_ready(self, key: _Key) -> None:
        """Send the requests that may be sent now."""
        queue = self._queues.get(key)
        if queue is None:
            return
        now_us = self._env.clock.monotonic_us()
        while callers := queue.take_batch(lambda waiting: _first(waiting, now_us)):
            self._env.tasks.spawn(self._request(key, callers), "steps of a journal")
        if queue.idle:
            del self._queues[key]

    async def _request(self, key: _Key, callers: list[_Caller]) -> None:
        try:
            await self._send(callers)
        finally:
            for caller in callers:  # answered already, unless this task was cancelled
                caller.failed(closed_meanwhile(sent=caller.sent))
            self._queues[key].finished(callers)
            self._send_ready(key)

    async def _send(self, callers: list[_Caller]) -> None:
        """Send one operation; each caller gets the outcome of its own step."""
        for caller in callers:
            caller.sent = True
        left_us = min(c.deadline_us for c in callers) - self._env.clock.monotonic_us()
        steps = [c.step for c in callers]
        try:
            responses = await self._deliver(callers[0].journal, steps, max(0, left_us // 1000))
        except Rejected as err:
            if len(callers) == 1 or isinstance(err, SessionExpired):
                _fail(callers, err)
                return
            # Nothing took effect: sending each step alone finds the one that is refused.
            await asyncio.gather(*(self._send([c]) for c in callers))
        except Exception as err:  # any error ends the calls
            _fail(callers, err)
        else:
            for caller, response in zip(callers, responses, strict=True):
                caller.done(response)


def _first(waiting: deque[_Caller], now_us: int) -> list[_Caller]:
    """Take the steps of the next request; those whose time is up are not sent."""
    callers: list[_Caller] = []
    size = 0
    while waiting and len(callers) < MAX_STEPS:
        if waiting[0].answer.done() or waiting[0].deadline_us <= now_us:
            late = waiting.popleft()
            late.failed(_late(late))
            continue
        size += waiting[0].size
        if callers and size > MAX_BYTES:
            break
        callers.append(waiting.popleft())
    return callers


def _adds(step: pb.JournalStep) -> bool:
    return any(change.WhichOneof("what") in ("append", "set") for change in step.changes)


def _fail(callers: list[_Caller], err: Exception) -> None:
    """Fail some callers, each with an error of its own."""
    for caller in callers:
        caller.failed(err.another() if isinstance(err, NyalaError) else err)


def _late(caller: _Caller) -> OutcomeUnknown | TimedOut:
    name = caller.journal.name
    if caller.sent:
        return OutcomeUnknown(
            f"no leader of journal {name!r} answered a step in time. The step may or may not take effect; "
            "another one with the same condition settles it: one of the two takes effect"
        )
    return TimedOut(
        f"a step of journal {name!r} waited behind others until its time was up. It had no effect; check: "
        "nyala cluster ksck"
    )
