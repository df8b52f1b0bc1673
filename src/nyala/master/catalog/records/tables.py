"""Tables and tablets as the catalog holds them: frozen views of their durable records.

Rules: a record in the catalog is never changed; `edit()` returns a copy to change. Copies keep fields that
this build does not know (S0.87), so that a rolling upgrade loses none.
"""

from dataclasses import dataclass, field
from enum import Enum
from sys import intern

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
