"""Model of an ensemble: servers and tables, derived from the commits of the log without the product's state.

Each record is checked when it is committed: ids are new, tablets cover the hash space once, versions of the
list of servers have no gaps, every change of a table was requested by a client, and before an operation ends
its leader has called every server concerned that is up.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from nyala.ram.ids import LAST_HASH, ServerId
from nyala.ram.server_list import GROUP_SIZE, ServerStatus
from nyala.wire.proto import ram_pb2 as pb
from tests.sim.ensembles.commits import INTENT, Commit, words

Listed = dict[str, tuple[str, int]]
"""The list of servers as servers see it: status and replication group, by id."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A tablet: its hashes, and its owner."""

    first: int
    last: int
    owner: ServerId


@dataclass(frozen=True, slots=True)
class ModelTable:
    """A table as it is after some commit."""

    id: int
    name: str
    operation: tuple[str, int]
    pieces: tuple[Piece, ...]

    def owners(self) -> set[ServerId]:
        """Return the owners of its tablets."""
        return {p.owner for p in self.pieces}


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A server that was enlisted and is not forgotten yet."""

    id: ServerId
    address: str
    roles: frozenset[str]
    status: ServerStatus = ServerStatus.UP
    group: int = 0


class Requests(Protocol):
    """Requests of clients and calls of leaders."""

    def may_create(self, operation: tuple[str, int], name: str, span: int) -> bool:
        """Return whether a client has requested this table."""
        ...

    def may_drop(self, operation: tuple[str, int], name: str) -> bool:
        """Return whether a client has requested to drop it."""
        ...

    def may_split(self, name: str, split_hash: int) -> bool:
        """Return whether a client has requested this split."""
        ...

    def called(self, epoch: int, what: str, table_id: int) -> set[ServerId]:
        """Return the servers that the leader of an epoch has called for a table."""
        ...


Tables = Mapping[str, ModelTable]


@dataclass(slots=True)
class EnsembleModel:
    """See above.

    Attributes:
        requests: see `Requests`.
        tables: by name.
        servers: by id.
        version: of the list of servers.
        confirmed: version that all servers are noted to have.
        highest: highest id of a table so far.
        seen: tables after each commit.
        lists: the list of servers after each version.
        drops: operations of clients that have dropped a table.
        counts: number of commits by kind.
    """

    requests: Requests
    tables: Tables = field(default_factory=dict)
    servers: dict[ServerId, ModelServer] = field(default_factory=dict)
    version: int = 0
    confirmed: int = 0
    highest: int = 0
    seen: list[Tables] = field(default_factory=lambda: [{}])
    lists: list[Listed] = field(default_factory=lambda: [{}])
    drops: set[tuple[str, int]] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    _generations: set[ServerId] = field(default_factory=set)
    _expected: dict[int, tuple[str, int, frozenset[ServerId]]] = field(default_factory=dict)

    def commit(self, commit: Commit) -> None:
        """Take a commit.

        Raises:
            AssertionError: it breaks a rule.
        """
        for entry, data in commit.invalidated:
            self._invalid(commit.epoch, entry, data)
        for entry, data in commit.entries:
            if (found := words(data)) is not None:
                state, kind, payload = found
                record = pb.Record.FromString(payload)
                self.counts[f"{state.decode()} {kind}"] += 1
                assert record.epoch == commit.epoch, (
                    f"{record} of the leader of epoch {commit.epoch}"
                )
                if state == INTENT:
                    self._intent(entry, record)
                else:
                    self._result(record)
        self.seen.append(self.tables)

    def by_id(self, table_id: int) -> ModelTable:
        """Return a table."""
        found = next((t for t in self.tables.values() if t.id == table_id), None)
        assert found is not None, f"there is no table {table_id}: {self.tables}"
        return found

    def up(self) -> set[ServerId]:
        """Return the servers that are up."""
        return {s.id for s in self.servers.values() if s.status is ServerStatus.UP}

    # ---- intents -----------------------------------------------------------------------------------

    def _intent(self, entry: int, record: pb.Record) -> None:
        what = record.WhichOneof("what")
        match what:
            case "create_table":
                table = self._created(record.create_table)
                owners, call = table.owners(), "take"
            case "drop_table":
                table = self._dropped(record.drop_table)
                owners, call = table.owners(), "drop"
            case "split_tablet":
                table, split = self.by_id(record.split_tablet.table_id), record.split_tablet
                owners, call = self._split(table, split.split_hash), "split"
            case "tablet_recovered":
                table = self.by_id(record.tablet_recovered.table_id)
                owners, call = self._recovered(table, record.tablet_recovered), "take"
            case _:
                raise AssertionError(f"an intent of {what}")
        self._expected[entry] = (call, table.id, frozenset(owners & self.up()))

    def _put(self, table: ModelTable) -> None:
        assert_covered(table.pieces)
        self.tables = {**self.tables, table.name: table}

    def _created(self, made: pb.Table) -> ModelTable:
        table = table_of(made)
        assert made.id > self.highest, f"id {made.id} again, after {self.highest}"
        assert made.name not in self.tables, f"two tables {made.name!r}"
        assert len(made.tablets) == made.server_span, f"{made} has other tablets than requested"
        assert self.requests.may_create(table.operation, made.name, made.server_span), made
        masters = {s for s in self.up() if "master" in self.servers[s].roles}
        assert table.owners() <= masters, f"{table.owners()} own tablets, and {masters} are up"
        self.highest = made.id
        self._put(table)
        return table

    def _dropped(self, drop: pb.DropTable) -> ModelTable:
        table, operation = self.by_id(drop.id), operation_of(drop.operation)
        assert table.name == drop.name, f"{drop} drops {table}"
        assert self.requests.may_drop(operation, drop.name), drop
        assert operation not in self.drops, f"{drop} has dropped another table before"
        self.drops.add(operation)
        self.tables = {n: t for n, t in self.tables.items() if t.id != drop.id}
        return table

    def _split(self, table: ModelTable, at: int) -> set[ServerId]:
        assert self.requests.may_split(table.name, at), f"nobody asked for {table.name} {at}"
        old = next(p for p in table.pieces if p.first <= at <= p.last)
        assert old.first < at, f"{old} begins with {at}"
        new = [replace(old, last=at - 1), replace(old, first=at)]
        self._put(_with_pieces(table, [p for p in table.pieces if p != old] + new))
        return {old.owner}

    def _recovered(self, table: ModelTable, found: pb.TabletRecovered) -> set[ServerId]:
        lost, pieces = ServerId.of(found.lost), pieces_of(found.pieces)
        assert self.servers[lost].status is ServerStatus.CRASHED, f"{lost} did not crash"
        takers = {p.owner for p in pieces}
        assert takers <= self.up(), f"{takers} take tablets, and {self.up()} are up"
        assert lost in table.owners(), f"{lost} owns nothing of {table}"
        self._put(_with_pieces(table, [p for p in table.pieces if p.owner != lost] + pieces))
        return takers

    # ---- results -----------------------------------------------------------------------------------

    def _invalid(self, epoch: int, entry: int, data: bytes) -> None:
        """An intent becomes invalid when its operation ends: the servers must have been called."""
        found = words(data)
        if found is not None and found[0] == INTENT:
            call, table_id, owners = self._expected.pop(entry)
            called = self.requests.called(epoch, call, table_id)
            assert owners <= called, (
                f"{found[1]} of table {table_id} ends, and its leader, epoch {epoch}, has called {called} "
                f"of {set(owners)} only"
            )
        elif found is not None:
            record = pb.Record.FromString(found[2])
            if record.WhichOneof("what") == "server_up":
                server = ServerId.of(record.server_up.id)
                assert self.servers[server].status is ServerStatus.REMOVE, f"{server} is forgotten"
                del self.servers[server]

    def _result(self, record: pb.Record) -> None:
        what = record.WhichOneof("what")
        match what:
            case "alive_table":
                alive = table_of(record.alive_table)
                assert self.by_id(alive.id) == alive, f"{alive} is {self.by_id(alive.id)}"
            case "largest_table_id":
                assert record.largest_table_id == self.highest, f"{record}, not {self.highest}"
            case "server_up":
                self._server_up(record.server_up)
            case "server_crashed":
                self._changes(record.server_crashed, ServerStatus.UP, ServerStatus.CRASHED)
            case "server_remove_update":
                self._changes(
                    record.server_remove_update, ServerStatus.CRASHED, ServerStatus.REMOVE
                )
            case "server_replication_update":
                group = record.server_replication_update
                one = self.servers[ServerId.of(group.id)]
                left = [
                    s for s in self.servers.values() if s.group == one.group and s.id in self.up()
                ]
                dissolved = one.group and not group.group and len(left) < GROUP_SIZE
                assert not one.group or dissolved, f"{one} gets group {group}"
                self._next(group.update_version, replace(one, group=group.group))
            case "server_list_version":
                version = record.server_list_version
                assert self.confirmed < version <= self.version, f"{record}, not {self.version}"
                self.confirmed = version
            case _:
                assert what, "a record of no type"

    # ---- the list of servers -----------------------------------------------------------------------

    def _server_up(self, up: pb.ServerUp) -> None:
        made = ModelServer(ServerId.of(up.id), up.address, frozenset(up.roles))
        assert made.id not in self._generations, f"id {made.id} again"
        assert made.id.index not in {s.index for s in self.servers}, f"{made.id} has a used index"
        addresses = {self.servers[s].address for s in self.up()}
        assert made.address not in addresses, f"two servers are up at {made.address}"
        self._generations.add(made.id)
        self._next(up.update_version, made)

    def _changes(self, change: pb.ServerChange, was: ServerStatus, now: ServerStatus) -> None:
        server = self.servers[ServerId.of(change.id)]
        assert server.status is was, f"{server} becomes {now}"
        if now is ServerStatus.REMOVE:
            owned = [t for t in self.tables.values() if server.id in t.owners()]
            assert not owned, f"{server} is removed and owns tablets of {owned}"
        self._next(change.update_version, replace(server, status=now))

    def _next(self, version: int, server: ModelServer) -> None:
        """Take the next version of the list."""
        assert version == self.version + 1, f"version {version} of the list after {self.version}"
        self.version = version
        self.servers[server.id] = server
        listed = {**self.lists[-1], str(server.id): (str(server.status), server.group)}
        if server.status is ServerStatus.REMOVE:
            del listed[str(server.id)]
        self.lists.append(listed)


def operation_of(message: pb.OperationId) -> tuple[str, int]:
    """Return the id of an operation."""
    return message.client, message.sequence


def pieces_of(tablets: Iterable[pb.Mapping]) -> list[Piece]:
    """Return tablets of a message."""
    return [Piece(t.first, t.last, ServerId.of(t.master)) for t in tablets]


def table_of(message: pb.Table) -> ModelTable:
    """Return a table of a message."""
    pieces = tuple(pieces_of(message.tablets))
    return ModelTable(message.id, message.name, operation_of(message.operation), pieces)


def _with_pieces(table: ModelTable, pieces: Iterable[Piece]) -> ModelTable:
    return replace(table, pieces=tuple(sorted(pieces, key=lambda p: p.first)))


def assert_covered(pieces: Iterable[Piece]) -> None:
    """Check that tablets, in order, cover each hash once."""
    at = 0
    for piece in pieces:
        assert piece.first == at, f"{piece} begins after {at}"
        assert piece.last >= piece.first, f"{piece} has no hashes"
        at = piece.last + 1
    assert at == LAST_HASH + 1, f"hashes from {at} on have no tablet"
