"""The coordinator's operations, each with its commit point; docs/internals/coordinator.md has the table.

Operations on tables have an intent, since they act on servers. Those on the list of servers have none: their
records take effect together, and what servers are told follows from the list (`upkeep.py`).
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from nyala.common.errors import AlreadyPresent, InvalidArgument, NotFound, Unavailable
from nyala.ram.answers import name_of
from nyala.ram.checks import check_size
from nyala.ram.ids import HashRange, ServerId, equal_ranges
from nyala.ram.server_list import MASTER, ServerStatus
from nyala.ram.state import (
    LARGEST,
    VERSION,
    CoordinatorState,
    answer_of,
    objects_of,
    objects_of_server,
    parse,
)
from nyala.ram.tablet_map import mapping
from nyala.recipes.operations import Operation
from nyala.wire.proto import ram_pb2 as pb

MOST_MOVED = 30
"""Most backups that leave their groups in one step, which may have 64 changes."""


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


def _together(calls: Iterable[Action]) -> list[Action]:
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
        return _together(
            partial(self.context.calls.take, server, owned)
            for server, owned in sorted(found.items())
            if self.state.servers.is_up(server)
        )


class CreateTable(RecordOperation):
    """Create a table. The steps are those of S3.50; the commit point is CreateTable."""

    kind = "create_table"

    def compute(self, request: pb.CreateTableRequest) -> bytes:
        """See `Operation.compute`."""
        self.state.answers.check(request.operation, f"create {request.name}")
        tablets = self.state.tablets
        if tablets.by_name(request.name) is not None:
            raise AlreadyPresent(f"the ensemble has a table {request.name!r}; drop it first")
        masters = [s.id for s in self.state.servers.with_status(ServerStatus.UP, MASTER)]
        if not masters:
            raise Unavailable("no server that could own tablets is up; see: nyala ram servers")
        pieces = []
        for first, last in equal_ranges(request.server_span):
            pieces.append(mapping(first, last, masters[self.context.next_master % len(masters)]))
            self.context.next_master += 1
        made = pb.Table(
            id=tablets.next_id, name=request.name, server_span=request.server_span, tablets=pieces,
            operation=request.operation,
        )  # fmt: skip
        return self.record(create_table=made).SerializeToString()

    def actions(self, payload: bytes, epoch: int) -> Sequence[Action]:
        """See `Operation.actions`."""
        table = parse(payload).create_table
        return self.takes(table.tablets, table.id)

    def obsolete(self, payload: bytes) -> Iterable[str]:
        """See `Operation.obsolete`."""
        return [f"table {parse(payload).create_table.id}", LARGEST, *self.answers(payload)]

    def results(self, payload: bytes) -> Sequence[bytes]:
        """See `Operation.results`."""
        return [*self.alive(parse(payload).create_table.id), *self.answered(payload)]


class DropTable(RecordOperation):
    """Drop a table. The commit point is DropTable; it is always completed, never undone (S3.57)."""

    kind = "drop_table"

    def compute(self, request: pb.DropTableRequest) -> bytes:
        """See `Operation.compute`."""
        self.state.answers.check(request.operation, f"drop {request.name}")
        table = self.state.tablets.named(request.name)
        if request.id not in (0, table.id):
            raise NotFound(f"table {request.name!r} has id {table.id}, not {request.id}")
        drop = pb.DropTable(id=table.id, name=table.name, operation=request.operation)
        return self.record(drop_table=drop).SerializeToString()

    def apply(self, payload: bytes) -> None:
        """See `Operation.apply`."""
        record = parse(payload)
        if record.WhichOneof("what") == "drop_table":
            table = self.state.tablets.tables.get(record.drop_table.id)
            if table is not None:
                self.context.owners[table.id] = sorted(
                    {ServerId.of(t.master) for t in table.tablets}
                )
        super().apply(payload)

    def actions(self, payload: bytes, epoch: int) -> Sequence[Action]:
        """See `Operation.actions`."""
        table_id = parse(payload).drop_table.id
        return _together(
            partial(self.context.calls.drop, server, table_id)
            for server in self.context.owners.pop(table_id, [])
            if self.state.servers.is_up(server)
        )

    def obsolete(self, payload: bytes) -> Iterable[str]:
        """See `Operation.obsolete`."""
        table_id = parse(payload).drop_table.id
        largest = [LARGEST] if self._was_largest(table_id) else []
        return [f"table {table_id}", *largest, *self.answers(payload)]

    def results(self, payload: bytes) -> Sequence[bytes]:
        """See `Operation.results`."""
        table_id = parse(payload).drop_table.id
        if not self._was_largest(table_id):
            return self.answered(payload)
        largest = self.record(largest_table_id=table_id).SerializeToString()
        return [largest, *self.answered(payload)]

    def _was_largest(self, table_id: int) -> bool:
        return self.state.tablets.largest == table_id


class SplitTablet(RecordOperation):
    """Split a tablet. The commit point is SplitTablet."""

    kind = "split_tablet"

    def compute(self, request: pb.SplitTabletRequest) -> bytes:
        """See `Operation.compute`."""
        wanted = f"split {request.name} {request.split_hash}"
        self.state.answers.check(request.operation, wanted)
        table = self.state.tablets.named(request.name)
        if any(t.first == request.split_hash for t in table.tablets):
            raise AlreadyPresent(
                f"a tablet of {request.name!r} begins with hash {request.split_hash}"
            )
        check_size(table)
        split = pb.SplitTablet(
            table_id=table.id, split_hash=request.split_hash, operation=request.operation, name=table.name
        )  # fmt: skip
        return self.record(split_tablet=split).SerializeToString()

    def actions(self, payload: bytes, epoch: int) -> Sequence[Action]:
        """See `Operation.actions`."""
        split = parse(payload).split_tablet
        tablet = self.state.tablets.lookup(split.table_id, split.split_hash)
        if tablet is None or not self.state.servers.is_up(ServerId.of(tablet.master)):
            return ()
        owner = ServerId.of(tablet.master)
        return [partial(self.context.calls.split, owner, split.table_id, split.split_hash)]

    def obsolete(self, payload: bytes) -> Iterable[str]:
        """See `Operation.obsolete`."""
        return [f"table {parse(payload).split_tablet.table_id}", *self.answers(payload)]

    def results(self, payload: bytes) -> Sequence[bytes]:
        """See `Operation.results`."""
        return [*self.alive(parse(payload).split_tablet.table_id), *self.answered(payload)]


@dataclass(frozen=True, slots=True)
class TabletRecovery:
    """Request to recover the tablets of one table that a crashed server owned.

    Attributes:
        table_id: id of the table.
        lost: the server.
        pieces: its tablets, or pieces of them, with the server that takes each.
    """

    table_id: int
    lost: ServerId
    pieces: Sequence[tuple[HashRange, ServerId]]


class RecoverTablets(RecordOperation):
    """Have other servers own tablets of a crashed one. The commit point is TabletRecovered."""

    kind = "recover_tablets"

    def compute(self, request: TabletRecovery) -> bytes:
        """See `Operation.compute`."""
        owned = [t for t in self.state.tablets.owned_by(request.lost) if t[0] == request.table_id]
        pieces = sorted(request.pieces)
        up = all(self.state.servers.is_up(taker) for _, taker in pieces)
        up = up and not self.state.servers.is_up(request.lost)
        if not owned or not up or not _covers([p for p, _ in pieces], owned):
            raise Unavailable("tablets or servers have changed; the recovery is planned again")
        recovered = pb.TabletRecovered(
            table_id=request.table_id, lost=request.lost.message(),
            pieces=[mapping(p.first, p.last, taker) for p, taker in pieces],
        )  # fmt: skip
        return self.record(tablet_recovered=recovered).SerializeToString()

    def actions(self, payload: bytes, epoch: int) -> Sequence[Action]:
        """See `Operation.actions`."""
        recovered = parse(payload).tablet_recovered
        return self.takes(recovered.pieces, recovered.table_id)

    def obsolete(self, payload: bytes) -> Iterable[str]:
        """See `Operation.obsolete`."""
        return [f"table {parse(payload).tablet_recovered.table_id}"]

    def results(self, payload: bytes) -> Sequence[bytes]:
        """See `Operation.results`."""
        return self.alive(parse(payload).tablet_recovered.table_id)


def _covers(pieces: list[HashRange], tablets: list[HashRange]) -> bool:
    """Return True if sorted pieces cover sorted tablets, and nothing else."""
    left = list(tablets)
    for piece in pieces:
        if not left or piece.first != left[0].first or piece.last > left[0].last:
            return False
        if piece.last == left[0].last:
            left.pop(0)
        else:
            left[0] = left[0]._replace(first=piece.last + 1)
    return not left


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


class Enlist(FactOperation):
    """Take a server into the list; one that it replaces, or that was at its address, crashes first."""

    kind = "enlist"

    def facts(self, request: pb.EnlistRequest) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        servers, version, found = self.state.servers, self.state.servers.version, []
        gone = {ServerId.of(request.replaces)}
        before = servers.at_address(request.address)
        for one in sorted(gone | ({before.id} if before else set())):
            if servers.is_up(one):
                version += 1
                found += self.crash(one, version)
        version += 1
        made = ServerId(servers.free_index(), version)
        up = pb.ServerUp(
            id=made.message(), roles=sorted(set(request.roles)), address=request.address,
            read_mb_s=request.read_mb_s, update_version=version,
        )  # fmt: skip
        return [*found, self.record(server_up_update=version), self.record(server_up=up)]


class Crash(FactOperation):
    """Mark a server as crashed."""

    kind = "crash"

    def facts(self, request: ServerId) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        servers = self.state.servers
        if not servers.is_up(request):
            raise NotFound(f"server {request} is not up; see: nyala ram servers")
        return self.crash(request, servers.version + 1)


class RemoveServer(FactOperation):
    """End the recovery of a crashed server, which owns nothing; the others remove it from their lists."""

    kind = "remove"

    def facts(self, request: ServerId) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        servers = self.state.servers
        found = servers.servers.get(request)
        if found is None or found.status is not ServerStatus.CRASHED:
            raise NotFound(f"server {request} is not crashed; see: nyala ram servers")
        if self.state.tablets.owned_by(request):
            raise Unavailable(f"server {request} owns tablets that are not recovered")
        change = pb.ServerChange(id=request.message(), update_version=servers.version + 1)
        return [self.record(server_remove_update=change)]

    def obsolete(self, payload: bytes) -> Iterable[str]:
        """See `Operation.obsolete`."""
        (record,) = pb.Records.FromString(payload).records
        server = ServerId.of(record.server_remove_update.id)
        return [*objects_of(record), f"server_needs_recovery {server}"]


class Confirm(FactOperation):
    """Note that all servers that are up have a version of the list (S3.41, S3.38)."""

    kind = "confirm"

    def facts(self, request: int) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        servers = self.state.servers
        if not servers.confirmed < request <= servers.version:
            raise InvalidArgument(
                f"version {request} is not above {servers.confirmed}, or not there yet"
            )
        return [self.record(server_list_version=request)]

    def obsolete(self, payload: bytes) -> Iterable[str]:
        """See `Operation.obsolete`."""
        version = pb.Records.FromString(payload).records[0].server_list_version
        servers = self.state.servers
        yield VERSION
        yield from (f"server_up_update {v}" for v in servers.unconfirmed if v <= version)
        yield from (f"server_replication_up_update {v}" for v in servers.moved if v <= version)
        for server in servers.removable(version):
            yield from objects_of_server(server)


class SetRecoveryInfo(FactOperation):
    """Keep what a recovery of a server needs to know (ServerUpdate)."""

    kind = "set_recovery_info"

    def facts(self, request: pb.RecoveryInfo) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        server = ServerId.of(request.id)
        if not self.state.servers.is_up(server):
            raise NotFound(f"server {server} is not up; see: nyala ram servers")
        return [self.record(server_update=request)]


class AssignGroup(FactOperation):
    """Put backups that are in no replication group into a new one; its number is the version of its first."""

    kind = "assign_group"

    def facts(self, request: None) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        first, found = self.state.servers.version + 1, []
        for number, server in enumerate(self.state.servers.without_group()):
            made = pb.ReplicationGroup(id=server.up.id, group=first, update_version=first + number)
            found.append(self.record(server_replication_up_update=made))
            found.append(self.record(server_replication_update=made))
        return found


class DissolveGroups(FactOperation):
    """Take the backups that are left of a replication group out of it; they may form another one."""

    kind = "dissolve_groups"

    def facts(self, request: None) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        first, found = self.state.servers.version + 1, []
        for number, server in enumerate(self.state.servers.of_broken_groups()[:MOST_MOVED]):
            left = pb.ReplicationGroup(id=server.up.id, group=0, update_version=first + number)
            found.append(self.record(server_replication_up_update=left))
            found.append(self.record(server_replication_update=left))
        return found


class NoteLoads(FactOperation):
    """Keep the loads that a server reports, so that a later leader divides its tablets by them."""

    kind = "note_loads"

    def facts(self, request: pb.ServerLoads) -> list[pb.Record]:
        """See `FactOperation.facts`."""
        server = ServerId.of(request.id)
        if not self.state.servers.is_up(server):
            raise NotFound(f"server {server} is not up; see: nyala ram servers")
        return [self.record(server_loads=request)]


KINDS = (CreateTable, DropTable, SplitTablet, RecoverTablets, Enlist, Crash, RemoveServer, Confirm,
         SetRecoveryInfo, AssignGroup, DissolveGroups, NoteLoads)  # fmt: skip


def operations(context: OperationContext) -> list[Operation]:
    """Return all operations."""
    return [kind(context) for kind in KINDS]
