"""State of a service by the valid entries of its log of operations."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from nyala.client.journal.items import Entry
from nyala.common.errors import Corrupt
from nyala.recipes.operations.operation import Operation
from nyala.recipes.operations.pending import PendingOperation, PendingOperations, refuse_touching
from nyala.recipes.records import DONE, INTENT, OperationRecord, names_of, operation_record


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
