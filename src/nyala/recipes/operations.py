"""Operations: changes of distributed state that a crash of their leader leaves undone, or completed.

An operation is computed, its intent appended (the commit point), applied to the local state, and carried out
at other processes; then an entry with the result replaces the intent. The next leader completes the
operations whose intents it finds, in their order, before it takes requests.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from nyala.client.journal.coroutines import AsyncJournal
from nyala.client.journal.items import Entry, Event, Invalidated, Rebased
from nyala.common.errors import InvalidArgument, LogGone, OutcomeUnknown, Retryable
from nyala.recipes.own_steps import PAUSE_MS, OwnSteps, TermSteps

INTENT, DONE = b"intent", b"done"
"""First words of the entries; the name of the kind and the payload follow. Others are ignored."""
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


@dataclass(frozen=True, slots=True)
class _Record:
    state: bytes
    kind: str
    payload: bytes


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
        last: id up to which the log was replayed, or written by this process.
        followed: id of the last change that `follow` has taken.
    """

    def __init__(
        self,
        journal: AsyncJournal,
        log: str,
        kinds: Iterable[Operation],
        retract: Callable[[str], object],
        call: Callable[..., Awaitable[Any]],
        point: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._journal = journal
        self._log = log
        self._kinds = {one.kind: one for one in kinds}
        self._retract = retract
        self._call = call
        self._point = point
        self._lock = asyncio.Lock()
        self._objects: dict[str, set[int]] = {}  # valid results, by object
        self._described: dict[int, tuple[str, ...]] = {}
        self._intents: dict[int, _Record] = {}
        self.last = self.followed = 0

    @property
    def reached(self) -> int:
        """Id up to which this process has the changes of the log."""
        return max(self.last, self.followed)

    # ---- requests ----------------------------------------------------------------------------------

    async def execute(self, steps: OwnSteps, kind: str, request: Any) -> bytes:
        """Execute an operation as the leader; return the payload of its intent.

        Args:
            steps: of the leader.
            kind: name of the kind.
            request: for its `compute`.

        Raises:
            NotLeading: nothing took effect, or the next leader completes the operation.
            InvalidArgument: there is no such kind.
        """
        term, operation = steps.term(), self._kinds.get(kind)
        if operation is None:
            names = ", ".join(sorted(self._kinds))
            raise InvalidArgument(f"no operation {kind!r}; the kinds are: {names}")
        async with self._lock:
            await self._complete(term)  # those whose actions have failed
            return await self._do(term, operation, request=request)

    async def take_over(self, steps: OwnSteps) -> None:
        """Replay what was not replayed, and complete the operations that were not, in their order.

        Raises:
            NotLeading: this process does not lead any more.
        """
        term = steps.term()
        async with self._lock:
            await self.catch_up()
            await self._complete(term)

    async def _complete(self, steps: TermSteps) -> None:
        """Complete the operations whose intents are valid, in their order."""
        for intent in sorted(self._intents):
            record = self._intents[intent]
            await self._do(steps, self._kinds[record.kind], intent=intent)

    async def _do(
        self, steps: TermSteps, operation: Operation, *, request: Any = None, intent: int = 0
    ) -> bytes:
        """Execute an operation from its request, or complete it from its intent.

        Args:
            steps: of the term.
            operation: its kind.
            request: for a new one.
            intent: id of the intent that was found; 0: a new one.
        """
        name = operation.kind
        if intent:
            payload = self._intents[intent].payload
        else:
            payload = await self._call(operation.compute, request)
            if operation.has_intent:
                record = _Record(INTENT, name, payload)
                (intent,) = await self._append(steps, f"{name} intent", [_encode(record)], ())
                self._intents[intent] = record
        if intent:
            await self._call(operation.apply, payload)
            for number, action in enumerate(operation.actions(payload, steps.check())):
                steps.check()
                await self._at(f"{name} action {number}", self._call(action))
        await self._finish(steps, operation, payload, intent)
        return payload

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
        gone = {i for o in operation.obsolete(payload) for i in self._objects.get(o, ())}
        stale = sorted(gone | {intent} if intent else gone)
        if not results and not stale:
            return
        entries = [_encode(_Record(DONE, operation.kind, one)) for one in results]
        ids = await self._append(steps, f"{operation.kind} done", entries, stale)
        for entry, result in zip(ids, results, strict=False):
            if not intent:
                await self._call(operation.apply, result)
            self._describe(entry, tuple(operation.objects(result)))
        await self._forget(stale)

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
        step = self._journal.builder()
        for number, data in enumerate(entries):
            step.append(self._log, data, () if number else stale)
        if not entries:
            step.invalidate(self._log, stale)
        outcome = await self._at(name, steps.step(*step.parts))
        ids: Sequence[int] = outcome.ids
        self.last = ids[-1]
        return ids

    async def _at(self, name: str, work: Awaitable[Any]) -> Any:
        """Await something between two crash points."""
        try:
            self._point(f"before {name}")
        except BaseException:  # of a test
            getattr(work, "close", lambda: None)()
            raise
        found = await work
        self._point(f"after {name}")
        return found

    # ---- replay ------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Replay the log up to its present end: the results are applied, intents kept for `take_over`."""
        last = await self._journal.last_id(self._log)
        if not last:
            return
        found: dict[int, bytes] = {}
        async for page in self._journal.entries(self._log):
            found.update((e.id, e.data) for e in page)
        await self._replace(found)
        self.last = max(self.last, last)

    async def follow(self) -> None:
        """Apply results as they come, until cancelled; intents wait until they are invalid."""
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
                log.error("a change of log %s was not applied", self._log, exc_info=bug)
                await self._journal.env.tasks.sleep_ms(FAILED_PAUSE_MS)

    async def _take(self, events: Sequence[Event]) -> None:
        if isinstance(events[0], Rebased):
            await self.catch_up()
            return
        for event in events:
            if isinstance(event, Entry) and event.id > self.last:
                await self._replay(event.id, event.data)
            elif isinstance(event, Invalidated) and event.id > self.last:
                await self._forget(event.ids)

    async def _replace(self, found: dict[int, bytes]) -> None:
        """Hold these valid entries."""
        known = {*self._intents, *self._described}
        for entry_id in sorted(found.keys() - known):
            await self._replay(entry_id, found[entry_id])
        await self._forget(known - found.keys())

    async def _replay(self, entry_id: int, data: bytes) -> None:
        record = _decode(data)
        operation = None if record is None else self._kinds.get(record.kind)
        if record is None or operation is None:
            return  # of a newer version, or the leader's
        if record.state == INTENT:
            self._intents[entry_id] = record
            return
        await self._call(operation.apply, record.payload)
        self._describe(entry_id, tuple(operation.objects(record.payload)))

    def _describe(self, entry_id: int, objects: tuple[str, ...]) -> None:
        self._described[entry_id] = objects
        for name in objects:
            self._objects.setdefault(name, set()).add(entry_id)

    async def _forget(self, ids: Iterable[int]) -> None:
        """Entries became invalid; retract the objects that none describes any more.

        An object is forgotten once it was retracted, which is repeated after an error or a cancellation.
        """
        for one in ids:
            self._intents.pop(one, None)
            for name in self._described.get(one, ()):
                left = self._objects.get(name, set())
                if left == {one}:
                    await self._call(self._retract, name)
                    del self._objects[name]
                left.discard(one)
            self._described.pop(one, None)


def _encode(record: _Record) -> bytes:
    return b"%s %s %s" % (record.state, record.kind.encode(), record.payload)


def _decode(data: bytes) -> _Record | None:
    """Return a record; None: the entry is none of an operation."""
    parts = data.split(b" ", 2)
    if len(parts) != 3 or parts[0] not in (INTENT, DONE):
        return None
    return _Record(parts[0], parts[1].decode(errors="replace"), parts[2])
