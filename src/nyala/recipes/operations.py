"""Operations: changes of distributed state that a crash of their leader leaves undone, or completed.

An operation is computed, its intent appended (the commit point), applied to the local state, and carried out
at other processes; then an entry with the result replaces the intent. The next leader completes the
operations whose intents it finds, in their order, before it takes requests. One that cannot be completed
stays pending, and stops only those that touch its objects.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
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
from nyala.recipes.own_steps import PAUSE_MS, OwnSteps, TermSteps
from nyala.recipes.pending import PendingOperation, PendingOperations, refuse_touching
from nyala.recipes.records import (
    DONE,
    INTENT,
    OperationRecord,
    names_of,
    operation_record,
    payload_of,
    step_of,
)
from nyala.recipes.whole import WholeTasks

FAILED_PAUSE_MS = 1_000
"""Pause of a follower before it applies again what an operation has failed to apply, in milliseconds."""

log = logging.getLogger(__name__)


class Operation(ABC):
    """A kind of operation. Its methods see the service's own state.

    Attributes:
        kind: name, without spaces.
        has_intent: False: it has no actions, so that its results, which are appended in one step and applied
            then, are its commit point.
    """

    kind: str
    has_intent: bool = True

    @abstractmethod
    def compute(self, request: Any) -> bytes:
        """Return the payload of the intent; it changes nothing. What it raises refuses the request."""

    @abstractmethod
    def apply(self, payload: bytes) -> None:
        """Change the local state. It may be called again with the same payload."""

    @abstractmethod
    def objects(self, payload: bytes) -> Iterable[str]:
        """Return the names of the objects that the payload of a result describes."""

    def obsolete(self, payload: bytes) -> Iterable[str]:
        """Return the objects whose earlier entries become invalid, from the payload of `compute`."""
        return self.objects(payload)

    def actions(self, payload: bytes, epoch: int) -> Sequence[Callable[[], Any]]:
        """Return the effects on other processes, each of which may be called again; coroutine functions too.

        Args:
            payload: of the intent.
            epoch: of the leader, for the guards of these processes.
        """
        return ()

    def result(self, payload: bytes) -> bytes | None:
        """Return the payload of the entry that remains; None: none does, and the objects are retracted."""
        return payload

    def results(self, payload: bytes) -> Sequence[bytes]:
        """Return the payloads of the entries that remain, if they may be several."""
        result = self.result(payload)
        return () if result is None else (result,)


class OperationState:
    """Valid entries of a log of operations, and the state of the service by them.

    Args:
        kinds: by name.
        retract: see `OperationLog`.
        call: see `OperationLog`.
        read: returns pages of the valid entries.

    Attributes:
        kinds: by name.
        pending: operations whose intents are valid.
    """

    def __init__(
        self,
        kinds: dict[str, Operation],
        retract: Callable[[str], object],
        call: Callable[..., Awaitable[Any]],
        read: Callable[[], AsyncIterator[list[Entry]]],
    ) -> None:
        self.kinds = kinds
        self.pending = PendingOperations()
        self._retract = retract
        self._call = call
        self._read = read
        self._objects: dict[str, set[int]] = {}  # valid results, by object
        self._described: dict[int, tuple[str, ...]] = {}

    def touched(self, kind: str, payload: bytes) -> set[str]:
        """Return the objects that an operation changes."""
        operation = self.kinds[kind]
        results = operation.results(payload)
        described = {name for one in results for name in names_of(operation.objects(one))}
        return described.union(names_of(operation.obsolete(payload)))

    def refuse_beside(self, kind: str, payload: bytes, before: int = 1 << 64) -> None:
        """Raise Unavailable if a pending operation touches what another one does.

        Args:
            kind: name of the kind of the other one.
            payload: of the other one.
            before: id; only intents below it count.
        """
        objects = self.touched(kind, payload)
        for other in self.pending.every():
            if other.intent < before:
                refuse_touching(kind, objects, other, self.touched(other.kind, other.payload))

    def ends(self, kind: str, payload: bytes, intent: int) -> tuple[list[bytes], list[int]]:
        """Return the entries with the results of an operation, and the ids that they make obsolete.

        Args:
            kind: name of its kind.
            payload: that `compute` returned.
            intent: id of the intent; 0: it has none.
        """
        operation = self.kinds[kind]
        gone = {i for o in names_of(operation.obsolete(payload)) for i in self._objects.get(o, ())}
        entries = [OperationRecord(DONE, kind, one).encode() for one in operation.results(payload)]
        return entries, sorted(gone | {intent} if intent else gone)

    async def replace(self, found: dict[int, bytes]) -> None:
        """Hold these valid entries."""
        known = {*self.pending, *self._described}
        for entry_id in sorted(found.keys() - known):
            await self.replay(entry_id, found[entry_id])
        await self.forget(known - found.keys())

    async def replay(self, entry_id: int, data: bytes) -> None:
        """Apply an entry with a result, or keep an intent."""
        record = operation_record(data)
        operation = None if record is None else self.kinds.get(record.kind)
        if record is None or operation is None:
            return  # of a newer version, or the leader's
        if record.state == INTENT:
            self.pending.add(entry_id, record.kind, record.payload)
            return
        try:
            await self._call(operation.apply, record.payload)
        except Corrupt as err:
            raise Corrupt(
                f"entry {entry_id}, of a {record.kind!r}, cannot be applied: {err.message}",
                {**err.details, "entry": str(entry_id)},
            ) from err
        self.describe(entry_id, names_of(operation.objects(record.payload)))

    def describe(self, entry_id: int, objects: tuple[str, ...]) -> None:
        """Note the objects that a valid entry describes."""
        self._described[entry_id] = objects
        for name in objects:
            self._objects.setdefault(name, set()).add(entry_id)

    async def forget(self, ids: Iterable[int]) -> None:
        """Entries became invalid; retract the objects that none describes any more.

        An object is forgotten once it was retracted, which is repeated after an error or a cancellation. What
        this process has applied from an intent that ended without its doing is set right.
        """
        ended: list[PendingOperation | None] = []
        for one in ids:
            ended.append(self.pending.remove(one))
            for name in self._described.get(one, ()):
                left = self._objects.get(name, set())
                if left == {one}:
                    await self._call(self._retract, name)
                    del self._objects[name]
                left.discard(one)
            self._described.pop(one, None)
        for applied in ended:
            if applied is not None:
                await self._restore(self.touched(applied.kind, applied.payload))

    async def _restore(self, objects: set[str]) -> None:
        """Let the state of objects be that of the valid entries."""
        ids: set[int] = set()
        for name in sorted(objects):
            described = self._objects.get(name)
            if described:
                ids |= described
            else:
                await self._call(self._retract, name)
        if not ids:
            return
        async for page in self._read():
            for entry in page:
                record = operation_record(entry.data) if entry.id in ids else None
                if record is not None:
                    await self._call(self.kinds[record.kind].apply, record.payload)


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
