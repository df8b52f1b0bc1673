"""The log of operations of a leader: execution, completion of pending operations, replay."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from nyala.client.journal.coroutines import JournalCoroutines
from nyala.client.journal.items import Entry, Event, Invalidated, Rebased
from nyala.common.errors import (
    Corrupt,
    InvalidArgument,
    LogGone,
    NotLeading,
    NotReady,
    OutcomeUnknown,
    Retryable,
)
from nyala.recipes.operations.operation import Operation
from nyala.recipes.operations.pending import PendingOperation
from nyala.recipes.operations.state import OperationState
from nyala.recipes.own_steps import PAUSE_MS, OwnSteps, TermSteps
from nyala.recipes.records import INTENT, OperationRecord, names_of, payload_of, step_of
from nyala.recipes.whole import WholeTasks

FAILED_PAUSE_MS = 1_000
"""Pause of a follower before it applies again what an operation has failed to apply, in milliseconds."""

log = logging.getLogger(__name__)


class OperationLog:
    """Operations of the log of a leader, and its replay. Used on the client's loop only.

    Args:
        journal: journal of the log.
        log: name of the log.
        kinds: the kinds of operations.
        retract: called with the name of an object that no valid entry describes any more; perhaps again.
        call: runs a method, an action, or `retract`.
        point: called with a name before and after each append and each action, for tests that crash there.

    Attributes:
        tasks: its operations; each goes on to its end when its caller is cancelled.
        last: id up to which the log was replayed, or written by this process.
        followed: id of the last change that `follow` has taken.
    """

    def __init__(
        self,
        journal: JournalCoroutines,
        log: str,
        kinds: Iterable[Operation],
        retract: Callable[[str], object],
        call: Callable[..., Awaitable[Any]],
        point: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._journal = journal
        self._log = log
        self._kinds = {one.kind: one for one in kinds}
        self._call = call
        self._point = point
        self._lock = asyncio.Lock()
        self._state = OperationState(self._kinds, retract, call, lambda: journal.entries(log))
        self._pending = self._state.pending
        self.tasks = WholeTasks(journal.env, f"operations of log {log!r}")
        self.last = self.followed = 0

    @property
    def reached(self) -> int:
        """Id up to which this process has the changes of the log."""
        return max(self.last, self.followed)

    # ---- requests ----------------------------------------------------------------------------------

    async def execute(self, steps: OwnSteps, kind: str, request: Any) -> bytes:
        """Execute an operation as the leader, to its end if the caller is cancelled; return its payload.

        Args:
            steps: of the leader.
            kind: name of the kind.
            request: for its `compute`.

        Raises:
            NotReady: it is committed, and not completed yet; `details["intent"]` names it.
            OutcomeUnknown: the next leader completes it, or it has no effect.
            NotLeading, Unavailable, TimedOut: nothing took effect.
            InvalidArgument: there is no such kind, or the call is made by an operation.
            TooLarge: its intent, or its results, are too large; nothing took effect.
        """
        term, operation = steps.term(), self._kinds.get(kind)
        if operation is None:
            names = ", ".join(sorted(self._kinds))
            raise InvalidArgument(f"no operation {kind!r}; the kinds are: {names}")
        return await self.tasks.run(self._execute(term, operation, request))

    async def take_over(self, steps: OwnSteps) -> None:
        """Replay what was not replayed, and complete the operations that were not, in their order.

        Those that cannot be completed stay pending.

        Raises:
            NotLeading: this process does not lead any more.
        """
        await self.tasks.run(self._take_over(steps.term()))

    async def _take_over(self, term: TermSteps) -> None:
        async with self._lock:
            await self.catch_up()
            await self._complete(term)

    async def pending(self) -> list[PendingOperation]:
        """Return the operations that are committed, and not completed."""
        return self._pending.every()

    async def retry(self, steps: OwnSteps, intent: int) -> None:
        """Complete a pending operation now.

        Args:
            steps: of the leader.
            intent: id of its intent.

        Raises:
            NotFound: there is none.
            NotReady: it has failed again.
        """
        await self.tasks.run(self._retry(steps.term(), intent))

    async def _retry(self, term: TermSteps, intent: int) -> None:
        async with self._lock:
            pending = self._pending.get(intent)
            self._state.refuse_beside(pending.kind, pending.payload, intent)
            await self._perform(term, intent)

    async def abandon(self, steps: OwnSteps, intent: int) -> None:
        """End a pending operation without a result; its objects are again as the other entries describe them.

        What its actions have done at other processes stays.

        Args:
            steps: of the leader.
            intent: id of its intent.

        Raises:
            NotFound: there is none.
        """
        await self.tasks.run(self._abandon(steps.term(), intent))

    async def _abandon(self, term: TermSteps, intent: int) -> None:
        async with self._lock:
            name = self._pending.get(intent).kind
            await self._append(term, f"{name} abandoned", (), [intent])
            await self._state.forget([intent])

    # ---- execution ---------------------------------------------------------------------------------

    async def _execute(self, term: TermSteps, operation: Operation, request: Any) -> bytes:
        async with self._lock:
            await self._complete(term)  # those whose actions have failed
            name = operation.kind
            payload = payload_of(name, await self._call(operation.compute, request))
            self._state.refuse_beside(name, payload)
            if not operation.has_intent:
                await self._finish(term, operation, payload, 0)
                return payload
            # what could not end after the commit point is refused here
            step_of(self._journal, self._log, *self._state.ends(name, payload, 1))
            intent_data = OperationRecord(INTENT, name, payload).encode()
            (intent,) = await self._append(term, f"{name} intent", [intent_data], ())
            self._pending.add(intent, name, payload)
            await self._perform(term, intent)
            return payload

    async def _complete(self, term: TermSteps) -> None:
        """Complete pending operations in their order, but those that touch what a failed one touches."""
        blocked: set[str] = set()
        for intent in list(self._pending):
            pending = self._pending.get(intent)
            objects = self._state.touched(pending.kind, pending.payload)
            if blocked.isdisjoint(objects) and self._pending.due(intent, self._now_us()):
                try:
                    await self._perform(term, intent)
                    continue
                except NotReady as err:
                    if isinstance(err.__cause__, NotLeading):
                        raise err.__cause__ from None
                    term.check()
                    log.warning("%s", err.message)
            blocked |= objects

    def _now_us(self) -> int:
        return self._journal.env.clock.monotonic_us()

    async def _perform(self, term: TermSteps, intent: int) -> None:
        """Apply a committed operation, carry out its actions, and append its results.

        Raises:
            NotReady: it is committed, and could not be completed.
        """
        pending = self._pending.get(intent)
        operation = self._kinds[pending.kind]
        try:
            self._pending.applied(intent)
            await self._call(operation.apply, pending.payload)
            for number, action in enumerate(operation.actions(pending.payload, term.check())):
                term.check()
                await _between(self._point, f"{pending.kind} action {number}", self._call(action))
            await self._finish(term, operation, pending.payload, intent)
        except Exception as err:  # of an action, or of the service
            self._pending.failed(intent, err, self._now_us())
            mine = "" if isinstance(err, NotLeading) else "this process, or "
            raise NotReady(
                f"{pending.kind!r} is committed (intent {intent}), and {mine}the next leader completes it: "
                f"{type(err).__name__}: {err}",
                {"intent": str(intent)},
            ) from err

    async def _finish(
        self, steps: TermSteps, operation: Operation, payload: bytes, intent: int
    ) -> None:
        """Append the results, in one step that invalidates what they make obsolete.

        Args:
            steps: of the term.
            operation: its kind.
            payload: that `compute` returned.
            intent: id of the intent; 0: it has none, and the results are not applied yet.
        """
        results = operation.results(payload)
        entries, stale = self._state.ends(operation.kind, payload, intent)
        if not entries and not stale:
            return
        ids = await self._append(steps, f"{operation.kind} done", entries, stale)
        self._pending.remove(intent)
        for entry, result in zip(ids, results, strict=False):
            if not intent:
                await self._call(operation.apply, result)
            self._state.describe(entry, names_of(operation.objects(result)))
        await self._state.forget(stale)

    async def _append(
        self, steps: TermSteps, name: str, entries: Sequence[bytes], stale: Sequence[int]
    ) -> Sequence[int]:
        """Append entries, or invalidate alone, in one step; return the ids.

        Args:
            steps: of the term.
            name: of the crash points.
            entries: data of the entries.
            stale: ids that become invalid in the same step.
        """
        step = step_of(self._journal, self._log, entries, stale)
        outcome = await _between(self._point, name, steps.step(*step.parts))
        ids: Sequence[int] = outcome.ids
        self.last = ids[-1]
        return ids

    # ---- replay ------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Replay the log up to its present end: the results are applied, intents kept for `take_over`."""
        last = await self._journal.last_id(self._log)
        if not last:
            return
        found: dict[int, bytes] = {}
        async for page in self._journal.entries(self._log):
            found.update((e.id, e.data) for e in page)
        await self._state.replace(found)
        self.last = max(self.last, last)

    async def follow(self) -> None:
        """Apply results as they come, until cancelled; intents wait until they are invalid.

        Raises:
            Corrupt: an entry that is none of this service; `details["entry"]` has its id.
        """
        after = self.last
        while True:
            try:
                async with aclosing(self._journal.tail(self._log, after)) as pages:
                    async for events in pages:
                        async with self._lock:
                            await self._take(events)
                        if not isinstance(events[-1], Rebased):
                            self.followed = events[-1].id
                            after = events[-1].id - 1  # its invalidations may follow
            except (Retryable, OutcomeUnknown, LogGone):
                await self._journal.env.tasks.sleep_ms(PAUSE_MS)
            except Exception as bug:  # of an operation: what comes after it waits too
                _raise_final(bug)
                log.error("a change of log %s was not applied", self._log, exc_info=bug)
                await self._journal.env.tasks.sleep_ms(FAILED_PAUSE_MS)

    async def _take(self, events: Sequence[Event]) -> None:
        if isinstance(events[0], Rebased):
            await self.catch_up()
            return
        for event in events:
            if isinstance(event, Entry) and event.id > self.last:
                await self._state.replay(event.id, event.data)
            elif isinstance(event, Invalidated) and event.id > self.last:
                await self._state.forget(event.ids)


def _raise_final(error: Exception) -> None:
    """Raise what ends a follower: an entry that cannot be applied, and the end of its loop."""
    if isinstance(error, Corrupt):
        raise error
    if isinstance(error.__context__, GeneratorExit):  # the tail has ended with the loop
        raise error.__context__ from None


async def _between(point: Callable[[str], None], name: str, work: Awaitable[Any]) -> Any:
    """Await something between two crash points.

    Args:
        point: called before and after.
        name: of the crash points.
        work: what is awaited.
    """
    try:
        point(f"before {name}")
    except BaseException:  # of a test
        getattr(work, "close", lambda: None)()
        raise
    found = await work
    point(f"after {name}")
    return found
