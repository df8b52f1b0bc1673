"""Tables and tablets as the catalog holds them: frozen views of their durable records.

Rules: a record in the catalog is never changed; `edit()` returns a copy to change. Copies keep fields that
this build does not know (S0.87), so that a rolling upgrade loses none.
"""

from dataclasses import dataclass, field
from enum import Enum
from sys import intern

from google.protobuf.message import DecodeError

from nyala.common.errors import BadVersion, Corrupt, InvalidArgument
from nyala.common.ids import NO_OP, OpId, ServerUuid, TableId, TabletId
from nyala.machines import registry
from nyala.machines.kind import MachineKind
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb


class TableState(Enum):
    """State of a table, in memory and on disk."""

    UNKNOWN = cat.TABLE_UNKNOWN
    PREPARING = cat.TABLE_PREPARING
    RUNNING = cat.TABLE_RUNNING
    ALTERING = cat.TABLE_ALTERING
    REMOVED = cat.TABLE_REMOVED


class TabletState(Enum):
    """State of a tablet, in memory and on disk."""

    UNKNOWN = cat.TABLET_UNKNOWN
    PREPARING = cat.TABLET_PREPARING
    CREATING = cat.TABLET_CREATING
    RUNNING = cat.TABLET_RUNNING
    REPLACED = cat.TABLET_REPLACED
    DELETED = cat.TABLET_DELETED
    DROPPED = cat.TABLET_DROPPED


_PRESENT = (TableState.RUNNING, TableState.ALTERING)
_LIVE = (TabletState.CREATING, TabletState.RUNNING, TabletState.DROPPED)
_TABLET_STATES = {state.value: state for state in TabletState}


def operation_key(operation: pb.OperationId) -> tuple[bytes, int]:
    """Return the key of a DDL operation; its client is empty if it has no identity."""
    return operation.client, operation.sequence


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """One table, or journal, present or removed."""

    record: cat.TableRecord

    @property
    def id(self) -> TableId:
        """Unique for ever."""
        return TableId(self.record.id)

    @property
    def name(self) -> str:
        """Unique among the tables that are not removed."""
        return self.record.spec.name

    @property
    def state(self) -> TableState:
        """State of its life cycle."""
        return TableState(self.record.state)

    @property
    def spec(self) -> pb.TableSpec:
        """Its definition; read only."""
        return self.record.spec

    @property
    def version(self) -> int:
        """Number of its definition, which for a table is its schema."""
        return self.record.spec.schema.version

    @property
    def kind(self) -> MachineKind:
        """Kind of its tablets' state machines: it is a table, or a journal."""
        return registry.kind_of(self.record.spec.kind)

    @property
    def live(self) -> bool:
        """True if clients see it."""
        return self.state in _PRESENT and not self.record.purge_after_us

    @property
    def recallable(self) -> bool:
        """True if it was dropped and can still be recalled: its tablets exist, its name is free."""
        return self.state in _PRESENT and bool(self.record.purge_after_us)

    def definition(self, version: int) -> pb.TableSpec | None:
        """Return the definition at a schema version with which a replica may have to start."""
        kept = (self.spec, *self.record.earlier)
        return next((d for d in kept if d.schema.version == version), None)

    def edit(self) -> cat.TableRecord:
        """Return a copy of the record, to change."""
        copy = cat.TableRecord()
        copy.CopyFrom(self.record)
        return copy


@dataclass(frozen=True, slots=True)
class CatalogTablet:
    """One tablet, present or deleted; fields in frequent use are extracted from the record once.

    Attributes:
        record: read only.
        id: unique for ever; also its Raft group.
        table_id: the table that it belongs to.
        state: see `TabletState`.
        live: replicas of it should exist.
        config_id: op id of the committed configuration.
        members: servers of the committed configuration, in its order.
        awaited: members of the first configuration that have never reported a replica and have to create it.
    """

    record: cat.TabletRecord
    id: TabletId = field(init=False, compare=False)
    table_id: TableId = field(init=False, compare=False)
    state: TabletState = field(init=False, compare=False)
    live: bool = field(init=False, compare=False)
    config_id: OpId = field(init=False, compare=False)
    members: tuple[ServerUuid, ...] = field(init=False, compare=False)
    awaited: tuple[ServerUuid, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        record, consensus = self.record, self.record.consensus
        state = _TABLET_STATES.get(record.state) or TabletState(record.state)
        index = consensus.config_index
        put = object.__setattr__
        put(self, "id", TabletId(record.id))
        put(self, "table_id", TableId(intern(record.table_id)))
        put(self, "state", state)
        put(self, "live", state in _LIVE)
        put(self, "config_id", OpId(consensus.config_term, index) if index else NO_OP)
        put(self, "members", tuple(ServerUuid(intern(m.uuid)) for m in consensus.members))
        put(self, "awaited", self._awaited())

    @property
    def holders(self) -> tuple[ServerUuid, ...]:
        """Servers that may have a replica: the members, and all that have ever reported one."""
        return tuple(dict.fromkeys((*self.members, *map(ServerUuid, self.record.reported_by))))

    def _awaited(self) -> tuple[ServerUuid, ...]:
        """Return the members that have to create a replica.

        A member that lost its replica is not among them: a new, empty replica with its vote could elect a
        leader without acknowledged entries. Such a replica is replaced, not re-created.
        """
        if not self.live or self.config_id != NO_OP or self.held:
            return ()
        reported = tuple(self.record.reported_by)
        return tuple(m for m in self.members if m not in reported)

    @property
    def held(self) -> bool:
        """True if its creation waits until the other tablets have applied the version that adds its range."""
        return self.record.added_by > 0 and not self.record.floor

    @property
    def runs(self) -> bool:
        """True if it has had a leader: it is led, altered and repaired, also while its range is dropped."""
        return self.state in (TabletState.RUNNING, TabletState.DROPPED)

    @property
    def gone(self) -> bool:
        """True if it was deleted or replaced: it never comes back (S0.43), and no replica of it is needed."""
        return self.state in (TabletState.REPLACED, TabletState.DELETED)

    @property
    def dropped(self) -> bool:
        """True if its range was dropped: it takes no writes, and is kept for readers of its history."""
        return self.state is TabletState.DROPPED

    @property
    def moves(self) -> bool:
        """True if a member is to be promoted, or replaced."""
        return any(m.promote or m.replace for m in self.consensus.members)

    @property
    def consensus(self) -> pb.ConsensusState:
        """The newest committed configuration and leader that are known; read only."""
        return self.record.consensus

    def edit(self) -> cat.TabletRecord:
        """Return a copy of the record, to change."""
        copy = cat.TabletRecord()
        copy.CopyFrom(self.record)
        return copy


KIND_TABLE, KIND_TABLET, KIND_CLUSTER, KIND_SERVER = "table", "tablet", "cluster", "server"
KIND_DECISION, KIND_MARKS = "decision", "decision_marks"
KIND_TOKEN, KIND_REVOCATION, KIND_GRANT = "join_token", "revocation", "grant"
KIND_RULES, RULES_ROW = "access_rules", "rules"
KIND_USER = "account"
KIND_AUTHORITIES = AUTHORITIES_ROW = "authorities"
KIND_KEY = "txn_key"
"""Kind of the keys of transactions, which are looked up and not loaded: it sorts after every other kind."""
CLUSTER_ROW, MARKS_ROW = "cluster", "marks"


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """One row of the sys catalog.

    Attributes:
        kind: kind of its record.
        id: unique for the kind.
        body: the record.
        removed: the row is removed.
    """

    kind: str
    id: str
    body: bytes
    removed: bool = False


def table_row(record: cat.TableRecord) -> CatalogRow:
    """Return the row of a table."""
    return CatalogRow(KIND_TABLE, record.id, record.SerializeToString(deterministic=True))


def tablet_row(record: cat.TabletRecord) -> CatalogRow:
    """Return the row of a tablet."""
    return CatalogRow(KIND_TABLET, record.id, record.SerializeToString(deterministic=True))


def cluster_row(record: cat.ClusterRecord) -> CatalogRow:
    """Return the row of the cluster."""
    return CatalogRow(KIND_CLUSTER, CLUSTER_ROW, record.SerializeToString(deterministic=True))


def server_row(record: pb.ListedServer) -> CatalogRow:
    """Return the row of a tablet server."""
    return CatalogRow(KIND_SERVER, record.uuid, record.SerializeToString(deterministic=True))


def decision_row(record: cat.DecisionRecord) -> CatalogRow:
    """Return the row of a decision."""
    body = record.SerializeToString(deterministic=True)
    return CatalogRow(KIND_DECISION, record.transaction.hex(), body)


def removed_decision(transaction: bytes) -> CatalogRow:
    """Return the row that removes a decision."""
    return CatalogRow(KIND_DECISION, transaction.hex(), b"", removed=True)


def marks_row(record: cat.DecisionMarks) -> CatalogRow:
    """Return the row of the marks of all decisions."""
    return CatalogRow(KIND_MARKS, MARKS_ROW, record.SerializeToString(deterministic=True))


def token_row(record: cat.JoinTokenRecord) -> CatalogRow:
    """Return the row of a join token."""
    return CatalogRow(KIND_TOKEN, record.id, record.SerializeToString(deterministic=True))


def revocation_row(record: cat.RevocationRecord) -> CatalogRow:
    """Return the row of a revocation."""
    return CatalogRow(KIND_REVOCATION, record.id, record.SerializeToString(deterministic=True))


def grant_row(record: cat.GrantRecord) -> CatalogRow:
    """Return the row of a grant."""
    return CatalogRow(KIND_GRANT, record.id, record.SerializeToString(deterministic=True))


def rules_row(record: cat.AccessRulesRecord) -> CatalogRow:
    """Return the row of the version of the grants."""
    return CatalogRow(KIND_RULES, RULES_ROW, record.SerializeToString(deterministic=True))


def user_row(record: cat.UserRecord) -> CatalogRow:
    """Return the row of an account of a user."""
    return CatalogRow(KIND_USER, record.id, record.SerializeToString(deterministic=True))


def authorities_row(record: cat.AuthoritiesRecord) -> CatalogRow:
    """Return the row of the certificate authorities."""
    body = record.SerializeToString(deterministic=True)
    return CatalogRow(KIND_AUTHORITIES, AUTHORITIES_ROW, body)


def key_row(record: cat.KeyRecord) -> CatalogRow:
    """Return the row of a key."""
    return CatalogRow(KIND_KEY, record.key.name, record.SerializeToString(deterministic=True))


def removed_key(name: str) -> CatalogRow:
    """Return the row that removes a key."""
    return CatalogRow(KIND_KEY, name, b"", removed=True)


Item = (
    CatalogTable
    | CatalogTablet
    | cat.ClusterRecord
    | pb.ListedServer
    | cat.DecisionRecord
    | cat.DecisionMarks
    | cat.JoinTokenRecord
    | cat.RevocationRecord
    | cat.GrantRecord
    | cat.AccessRulesRecord
    | cat.UserRecord
    | cat.AuthoritiesRecord
)
_RECORDS: dict[
    str,
    type[cat.TableRecord]
    | type[cat.TabletRecord]
    | type[cat.ClusterRecord]
    | type[pb.ListedServer]
    | type[cat.DecisionRecord]
    | type[cat.DecisionMarks]
    | type[cat.JoinTokenRecord]
    | type[cat.RevocationRecord]
    | type[cat.GrantRecord]
    | type[cat.AccessRulesRecord]
    | type[cat.UserRecord]
    | type[cat.AuthoritiesRecord],
] = {
    KIND_TABLE: cat.TableRecord,
    KIND_TABLET: cat.TabletRecord,
    KIND_CLUSTER: cat.ClusterRecord,
    KIND_SERVER: pb.ListedServer,
    KIND_DECISION: cat.DecisionRecord,
    KIND_MARKS: cat.DecisionMarks,
    KIND_TOKEN: cat.JoinTokenRecord,
    KIND_REVOCATION: cat.RevocationRecord,
    KIND_GRANT: cat.GrantRecord,
    KIND_RULES: cat.AccessRulesRecord,
    KIND_USER: cat.UserRecord,
    KIND_AUTHORITIES: cat.AuthoritiesRecord,
}


def parse_key(row: CatalogRow) -> cat.KeyRecord:
    """Return the record of a key's row.

    Raises:
        Corrupt: the body is not such a record, or belongs to another key.
    """
    try:
        record = cat.KeyRecord.FromString(row.body)
    except DecodeError as err:
        raise Corrupt(f"the catalog row {row.kind}/{row.id} cannot be read: {err}") from err
    if record.key.name != row.id:
        raise Corrupt(
            f"the catalog row {row.kind}/{row.id} holds the record of {record.key.name!r}"
        )
    return record


def parse(row: CatalogRow) -> Item | None:
    """Return what a row holds; None for a key, or a kind of a newer release.

    Raises:
        Corrupt: the body is not a record of its kind, or belongs to another id.
        BadVersion: a state, or a kind of tables, of a newer release.
    """
    if row.kind not in _RECORDS:
        return None
    try:
        record = _RECORDS[row.kind].FromString(row.body)
    except DecodeError as err:
        raise Corrupt(f"the catalog row {row.kind}/{row.id} cannot be read: {err}") from err
    if isinstance(
        record,
        cat.ClusterRecord | cat.DecisionMarks | cat.AccessRulesRecord | cat.AuthoritiesRecord,
    ):
        return record
    if (found := _id_of(record)) != row.id:
        raise Corrupt(f"the catalog row {row.kind}/{row.id} holds the record of {found!r}")
    if not isinstance(record, cat.TableRecord | cat.TabletRecord):
        return record
    try:
        item = (
            CatalogTable(record) if isinstance(record, cat.TableRecord) else CatalogTablet(record)
        )
        assert item.state
        assert isinstance(item, CatalogTablet) or item.kind
    except InvalidArgument as err:
        raise BadVersion(
            f"the catalog row {row.kind}/{row.id} is of a newer release: {err}"
        ) from err
    except ValueError as err:
        raise BadVersion(
            f"the catalog row {row.kind}/{row.id} has an unknown state: {err}"
        ) from err
    return item


def _id_of(
    record: cat.TableRecord
    | cat.TabletRecord
    | pb.ListedServer
    | cat.DecisionRecord
    | cat.JoinTokenRecord
    | cat.RevocationRecord
    | cat.GrantRecord
    | cat.UserRecord,
) -> str:
    """Return the id that the row of a record has."""
    if isinstance(record, cat.DecisionRecord):
        return record.transaction.hex()
    return record.uuid if isinstance(record, pb.ListedServer) else record.id
