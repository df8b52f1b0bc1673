"""CoordinatorTerm: state and operations of a coordinator from one loss of the leadership to the next."""

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from nyala.client.journal.coroutines import JournalCoroutines
from nyala.common.errors import Corrupt, NotLeading, NotReady, NyalaError, OutcomeUnknown
from nyala.ram.calls import ServerCalls
from nyala.ram.operations.kinds import operations
from nyala.ram.operations.record_operation import OperationContext
from nyala.ram.state import CoordinatorState
from nyala.recipes.operations.log import OperationLog
from nyala.recipes.own_steps import OwnSteps

Point = Callable[[str], None]
ALIVE_KEYS = "alive/"
"""Beginning of the keys by which servers say that they are alive; ensemble and address follow."""


async def call(fn: Callable[..., Any], *args: Any) -> Any:
    """Call a method of an operation, which does not block, or await its action."""
    found = fn(*args)
    return await found if inspect.isawaitable(found) else found


class CoordinatorTerm:
    """Follows the log, then leads by it. A process that lost the leadership makes a new one.

    Args:
        journal: journal of the log.
        log: name of the log; the ensemble has the same name.
        call_ms: time for each call to a server.
        point: called at each crash point.
        on_corrupt: called once if the log has an entry that cannot be applied.

    Attributes:
        ensemble: id of the ensemble: its name, and the id of its journal.
        state: of the coordinator.
        calls: to servers.
        epoch: of its leadership, once the log is replayed and every operation completed; 0: not yet.
        changed: set after each operation.
    """

    def __init__(
        self, journal: JournalCoroutines, log: str, call_ms: int, point: Point,
        on_corrupt: Callable[[Corrupt], object],
    ) -> None:  # fmt: skip
        self._env = journal.env
        self.state = CoordinatorState()
        self.ensemble = f"{log}@{journal.id}"
        self.calls = ServerCalls(journal.env, self.ensemble, self.state, call_ms)
        self._context = OperationContext(self.state, self.calls)
        kinds = operations(self._context)
        self._journal = journal
        self._log = log
        self._operations = OperationLog(journal, log, kinds, self.state.retract, call, point)
        self._on_corrupt = on_corrupt
        self._follower = self._env.tasks.spawn(self._follow(), f"records of {log}")
        self._steps: OwnSteps | None = None
        self.epoch = 0
        self.changed = asyncio.Event()

    async def _follow(self) -> None:
        try:
            await self._operations.follow()
        except Corrupt as err:
            self._on_corrupt(err)

    @property
    def reached(self) -> int:
        """Id up to which this coordinator has the changes of the log."""
        return self._operations.reached

    async def take_over(self, steps: OwnSteps) -> None:
        """Replay the log, and complete what earlier leaders have left; requests are served then (S3.48).

        Raises:
            NotLeading: this process does not lead any more.
        """
        epoch = steps.check()
        self.calls.epoch = self._context.epoch = epoch
        self.calls.confirm = partial(steps.step, (), (), epoch)
        await self._operations.take_over(steps)
        self._steps, self.epoch = steps, epoch

    def check(self) -> None:
        """Check, before an answer, that this process leads by this term.

        Raises:
            NotLeading: it does not, or it replays the log.
        """
        if self._steps is None:
            raise NotLeading("this coordinator does not lead, or replays its log; retry")
        if self._steps.check() != self.epoch:
            raise NotLeading("this coordinator was established again; retry")

    async def alive(self) -> dict[str, int]:
        """Return the versions of the keys by which servers say that they are alive, by address."""
        prefix, found = f"{ALIVE_KEYS}{self._log}/", dict[str, int]()
        async for page in self._journal.keys(prefix):
            found.update((key.name.removeprefix(prefix), key.version) for key in page)
        return found

    async def resign(self) -> None:
        """End the leadership; another coordinator is established at once."""
        if self._steps is not None:
            await self._steps.resign()

    async def execute(self, kind: str, request: Any) -> bytes:
        """Execute an operation, also if the caller ends meanwhile; return the payload of `compute`.

        Raises:
            NotLeading: nothing took effect.
            OutcomeUnknown: the next leader completes it, or it has no effect.
            Rejected: it is refused.
        """
        self.check()
        assert self._steps is not None
        try:
            payload = await self._operations.execute(self._steps, kind, request)
            self.check()
        except NotLeading as err:  # perhaps after the commit point
            raise OutcomeUnknown(f"{kind} may take effect: {err.message}") from err
        except NotReady as err:  # it is committed; a client that retries finds it
            cause = err.__cause__
            if isinstance(cause, NotLeading):
                raise OutcomeUnknown(f"{kind} may take effect: {cause.message}") from err
            raise cause if isinstance(cause, NyalaError) else err from None
        finally:
            self.changed.set()
        return payload

    def close(self) -> None:
        """Follow the log no more."""
        self.epoch, self._steps = 0, None
        self._follower.cancel()
