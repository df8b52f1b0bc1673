"""Operations on tables and tablets. They have an intent, since they act on servers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from nyala.common.errors import AlreadyPresent, NotFound, Unavailable
from nyala.ram.checks import check_size
from nyala.ram.ids import HashRange, ServerId, equal_ranges
from nyala.ram.operations.record_operation import Action, RecordOperation, together
from nyala.ram.server_list import MASTER, ServerStatus
from nyala.ram.state import LARGEST, parse
from nyala.ram.tablet_map import mapping
from nyala.wire.proto import ram_pb2 as pb


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
        return together(
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
