"""Base classes of the coordinator's operations, whose payloads are records, and their calls to servers."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from nyala.ram.answers import name_of
from nyala.ram.ids import HashRange, ServerId
from nyala.ram.server_list import MASTER
from nyala.ram.state import CoordinatorState, answer_of, objects_of, parse
from nyala.recipes.operations.operation import Operation
from nyala.wire.proto import ram_pb2 as pb


class OwnershipCalls(Protocol):
    """Calls of the operations to servers; each may be repeated. One that gets no answer is owed."""

    async def take(self, server: ServerId, tablets: Sequence[HashRange]) -> None:
        """Have a server own tablets."""
        ...

    async def drop(self, server: ServerId, table_id: int) -> None:
        """Have a server own nothing of a table."""
        ...

    async def split(self, server: ServerId, table_id: int, split_hash: int) -> None:
        """Have a server split one of its tablets.

        Args:
            server: id of the server.
            table_id: id of the table.
            split_hash: hash with which the second piece begins.
        """
        ...


@dataclass
class OperationContext:
    """State and calls of the operations.

    Attributes:
        state: the coordinator's.
        calls: to servers.
        epoch: of this leader; for its records.
        next_master: counts the tablets that were assigned, for the order of the servers.
    """

    state: CoordinatorState
    calls: OwnershipCalls
    epoch: int = 0
    next_master: int = 0
    owners: dict[int, list[ServerId]] = field(default_factory=dict)


Action = Callable[[], Coroutine[Any, Any, None]]


def together(calls: Iterable[Action]) -> list[Action]:
    """Return one action that makes all calls at the same time: a silent server delays no other."""
    made = list(calls)

    async def action() -> None:
        await asyncio.gather(*(one() for one in made))

    return [action] if made else []


class RecordOperation(Operation):
    """An operation whose payloads are records.

    Args:
        context: what it works on.
    """

    def __init__(self, context: OperationContext) -> None:
        self.context = context
        self.state = context.state

    def record(self, **what: Any) -> pb.Record:
        """Return a record of this leader."""
        return pb.Record(epoch=self.context.epoch, **what)

    def apply(self, payload: bytes) -> None:
        """See `Operation.apply`."""
        self.state.apply(parse(payload))

    def objects(self, payload: bytes) -> Iterable[str]:
        """See `Operation.objects`."""
        return objects_of(parse(payload))

    def alive(self, table_id: int) -> Sequence[bytes]:
        """Return the record that describes a table as it is now."""
        table = self.state.tablets.tables.get(table_id)
        return () if table is None else (self.record(alive_table=table).SerializeToString(),)

    def answered(self, payload: bytes) -> Sequence[bytes]:
        """Return the record of the client's request that an intent carries out; none if it has no id."""
        answer = answer_of(parse(payload))
        if not answer.operation.client:
            return ()
        return (self.record(answered=answer).SerializeToString(),)

    def answers(self, payload: bytes) -> Sequence[str]:
        """Return the objects of the answer of an intent, and of those that are forgotten for it."""
        operation = answer_of(parse(payload)).operation
        if not operation.client:
            return ()
        return [name_of(operation), *self.state.answers.surplus(operation)]

    def takes(self, tablets: Iterable[pb.Mapping], table_id: int) -> list[Action]:
        """Return the action by which servers that are up take tablets of a table."""
        found: dict[ServerId, list[HashRange]] = {}
        for t in tablets:
            owned = HashRange(table_id, t.first, t.last)
            found.setdefault(ServerId.of(t.master), []).append(owned)
        return together(
            partial(self.context.calls.take, server, owned)
            for server, owned in sorted(found.items())
            if self.state.servers.is_up(server)
        )


class FactOperation(RecordOperation):
    """An operation without actions on servers: its records, in one step, are its commit point."""

    has_intent = False

    @abstractmethod
    def facts(self, request: Any) -> list[pb.Record]:
        """Return the records. It changes nothing; what it raises refuses the request."""

    def compute(self, request: Any) -> bytes:
        """See `Operation.compute`."""
        return pb.Records(records=self.facts(request)).SerializeToString()

    def obsolete(self, payload: bytes) -> Iterable[str]:
        """See `Operation.obsolete`."""
        return [name for r in pb.Records.FromString(payload).records for name in objects_of(r)]

    def results(self, payload: bytes) -> Sequence[bytes]:
        """See `Operation.results`."""
        return [r.SerializeToString() for r in pb.Records.FromString(payload).records]

    def crash(self, server: ServerId, version: int) -> list[pb.Record]:
        """Return the records by which a server crashes; one that owns no tablets needs no recovery."""
        change = pb.ServerChange(id=server.message(), update_version=version)
        found = [self.record(server_crashed=change)]
        if MASTER in self.state.servers.servers[server].up.roles:
            found.append(self.record(server_needs_recovery=change))
        return found
