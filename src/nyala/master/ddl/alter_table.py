"""Alter a table: from request, catalog and live servers to plan; and its end, once every tablet follows.

Pure. A table is ALTERING until each of its tablets has reported the present schema version. The orders are
derived in `reconcile.py`, level-triggered (S0.33, S0.38, S0.52).
"""

from collections.abc import Callable, Sequence

from nyala.common.errors import AlreadyPresent
from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.common.partitioning.partition import (
    KeyRange,
    PartitionSchema,
    TabletPartition,
    partitions,
)
from nyala.master.catalog import past_columns, queries
from nyala.master.catalog.actions import Action, AlterTabletAction, DeleteTabletAction
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.catalog.records.tables import (
    CatalogTable,
    CatalogTablet,
    TableState,
    TabletState,
    operation_key,
)
from nyala.master.ddl import create_table, kinds, table_spec
from nyala.master.ddl.alter_steps import Altered, Rules, take
from nyala.master.ddl.create_table import PlanInputs
from nyala.master.ddl.operation import CatalogOperation
from nyala.wire import convert
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb

MAX_OPERATIONS = 100
"""Maximum number of operations kept in a table's record to recognise retries."""


def operation(request: pb.AlterTableRequest, inputs: PlanInputs) -> CatalogOperation:
    """Return the operation that alters a table. Locked: its names, old and new, and itself."""
    return CatalogOperation(
        what="alter table",
        scope=lambda catalog: scope(catalog, request),
        plan=lambda catalog: plan(catalog, request, inputs),
    )


def servers_for(table: CatalogTable, steps: Sequence[pb.AlterStep]) -> int:
    """Return the number of live servers that an alteration needs; 0: it places no replicas."""
    asked = [s.replicas for s in steps if s.WhichOneof("step") == "replicas"]
    ranges = [table.spec.replicas for s in steps if s.WhichOneof("step") == "add_range"]
    return min(max([*asked, *ranges], default=0), table_spec.MAX_REPLICAS)


def scope(catalog: Catalog, request: pb.AlterTableRequest) -> Scope:
    """Return the locks: old and new names, the table, and its tablets if ranges are dropped."""
    names = [s.rename_table for s in request.steps if s.WhichOneof("step") == "rename_table"]
    table = queries.search(catalog, request.name, request.id)
    if table is None:
        return Scope(names=(request.name, *names))
    tablets: tuple[TabletId, ...] = ()
    if any(s.WhichOneof("step") == "drop_range" for s in request.steps):
        tablets = tuple(t.id for t in catalog.tablets_of(table.id))
    return Scope((table.name, *names), (table.id,), tablets)


def plan(catalog: Catalog, request: pb.AlterTableRequest, inputs: PlanInputs) -> CatalogPlan:
    """Decide what altering a table writes and orders.

    A tablet of an added range is not created before all others have applied the version (`opening`). A tablet
    of a dropped range is kept, and its leader ends its rows; one that never had a leader is deleted.

    Args:
        catalog: the leader's catalog.
        request: request of the client.
        inputs: live servers, limits and randomness.

    Returns:
        A plan that writes nothing when this operation was executed already, or changes nothing.

    Raises:
        NotFound: no such table, column or range.
        AlreadyPresent: another table has the new name, or a column.
        InvalidArgument: an invalid step, or it is of another kind.
        TooLarge: the definition would grow beyond the limit.
    """
    if request.operation.client:
        done = catalog.altered_by(operation_key(request.operation))
        if done is not None:
            return CatalogPlan(answer=done)
    table = queries.find(catalog, request.name, request.id, kinds.rules_of(request.kind).machine)
    kinds.check_kind(table, request.kind)
    rules = Rules(inputs.max_tablets, len(inputs.live), inputs.opening)
    altered = take(table.spec, request.steps, rules)
    check_free(catalog, table, altered.spec.name)
    table_spec.check_size(altered.spec, inputs.max_definition_bytes, table.spec.ByteSize())
    if altered.spec == table.spec and not altered.added and not altered.dropped:
        return CatalogPlan(answer=table.id)
    record = changed(catalog, table, altered.spec, request.operation)
    past_columns.note(
        record,
        table.spec.schema,
        inputs.time(),
        history_s=table_spec.history_of(altered.spec, inputs.history_s),
        max_bytes=2 * inputs.max_definition_bytes,
    )
    dropped_tablets, orders = _dropped(catalog, table, altered)
    new = _added(catalog, table, altered, inputs)
    actions = (*orders, *follow(catalog, record))
    return CatalogPlan((*dropped_tablets, *new), (record,), actions=actions, answer=table.id)


def follow(catalog: Catalog, record: cat.TableRecord) -> list[AlterTabletAction]:
    """Return the orders to the leaders of an ALTERING table's tablets; they are derived again from levels.

    Args:
        catalog: as it is before the table becomes `record`.
        record: record of the table.
    """
    if record.state != TableState.ALTERING.value:
        return []
    return [
        AlterTabletAction(ServerUuid(t.consensus.leader), t.id)
        for t in catalog.tablets_of(TableId(record.id))
        if t.runs and t.consensus.leader
    ]


def check_free(catalog: Catalog, table: CatalogTable, name: str) -> None:
    """Check that no other table has a name.

    Args:
        catalog: the leader's catalog.
        table: that is to have the name.
        name: the new name.

    Raises:
        AlreadyPresent: names it.
    """
    holder = catalog.named(name)
    if holder is not None and holder.id != table.id:
        raise AlreadyPresent(
            f"a {holder.kind.name} {name!r} exists already (id {holder.id}); drop it first, or choose "
            "another name"
        )


def changed(
    catalog: Catalog, table: CatalogTable, spec: pb.TableSpec, operation_id: pb.OperationId
) -> cat.TableRecord:
    """Return the record of a table with a new definition; ALTERING if its version grew.

    Args:
        catalog: the leader's catalog.
        table: as it is.
        spec: the new definition.
        operation_id: operation id of the client's request.
    """
    record = table.edit()
    record.spec.CopyFrom(spec)
    remember(record, operation_id)
    if spec.schema.version == table.version:
        return record
    if table.state is TableState.RUNNING:
        record.fully_applied_schema.CopyFrom(pb.Schema(version=table.version))
    record.state = TableState.ALTERING.value
    made_later = (t for t in catalog.tablets_of(table.id) if t.awaited or t.held)
    used_versions = {t.record.first_schema_version for t in made_later}
    kept = [e for e in (*table.record.earlier, table.spec) if e.schema.version in used_versions]
    del record.earlier[:]
    for definition in kept:
        old = record.earlier.add()
        old.CopyFrom(definition)
        old.ClearField("partition")
        old.ClearField("comment")
    return record


def remember(record: cat.TableRecord, operation_id: pb.OperationId) -> None:
    """Note in a table's record that an operation was executed, so that it is not executed again."""
    if operation_id.client:
        record.altered_by.append(operation_id)
        del record.altered_by[:-MAX_OPERATIONS]


def _dropped(
    catalog: Catalog, table: CatalogTable, altered: Altered
) -> tuple[list[cat.TabletRecord], list[Action]]:
    dropped_tablets: list[cat.TabletRecord] = []
    orders: list[Action] = []
    if not altered.dropped:
        return dropped_tablets, orders
    for tablet in catalog.current_of(table.id):
        if convert.partition_from_proto(tablet.record.partition).range in altered.dropped:
            record = tablet.edit()
            dropped_tablets.append(record)
            if tablet.runs:
                record.state = TabletState.DROPPED.value
                continue
            record.state = TabletState.DELETED.value
            orders += [DeleteTabletAction(server, tablet.id) for server in tablet.holders]
    return dropped_tablets, orders


def _added(
    catalog: Catalog, table: CatalogTable, altered: Altered, inputs: PlanInputs
) -> list[cat.TabletRecord]:
    parts = [p for piece in altered.added for p in _parts(altered.spec, piece)]
    if not parts:
        return []
    placed = create_table.place_all(catalog, inputs, len(parts), altered.spec.replicas, table.id)
    version = altered.spec.schema.version
    new = [
        create_table.new_tablet(table.id, part, servers, inputs, version)
        for part, servers in zip(parts, placed, strict=True)
    ]
    for record in new:
        record.added_by = version
    return new


def _parts(spec: pb.TableSpec, piece: KeyRange) -> list[TabletPartition]:
    """Return the partitions of one range: a bucket of each hash level."""
    ps = convert.partition_schema_from_proto(spec.partition)
    one = PartitionSchema(ps.hash, ps.range_column_ids, (piece,), ps.version)
    return partitions(convert.schema_from_proto(spec.schema), one)


def is_finished(
    catalog: Catalog, table: CatalogTable, version_of: Callable[[TabletId], int]
) -> bool:
    """Return whether every tablet of an ALTERING table has reported its present version.

    Args:
        catalog: the leader's.
        table: in that catalog.
        version_of: returns the highest schema version that a replica of a tablet has reported.
    """
    if table.state is not TableState.ALTERING:
        return False
    wanted = table.version
    return all(
        version_of(t.id) >= wanted and (t.record.dropped_at or not t.dropped)
        for t in catalog.tablets_of(table.id)
    )


def opening(
    catalog: Catalog, table: CatalogTable, version_of: Callable[[TabletId], int]
) -> list[CatalogTablet]:
    """Return the tablets of added ranges that can be created: all earlier tablets have applied the version.

    Args:
        catalog: the leader's.
        table: that is ALTERING.
        version_of: the highest schema version that a replica of a tablet has shown.
    """
    every = catalog.tablets_of(table.id)

    def follows(tablet: CatalogTablet, version: int) -> bool:
        ended = not tablet.dropped or tablet.record.dropped_at > 0
        return tablet.runs and ended and version_of(tablet.id) >= version

    def ready(version: int) -> bool:
        return all(follows(t, version) for t in every if t.record.added_by < version)

    return [t for t in every if t.held and ready(t.record.added_by)]


def open_ranges(
    table: CatalogTable, version_of: Callable[[TabletId], int], time: Callable[[], int]
) -> CatalogOperation:
    """Return the operation that creates the tablets of added ranges once all others follow.

    Writes to them are stamped above the times at which the others followed. So a read at a time that includes
    such a write is refused by every other tablet if it uses the old ranges.

    Args:
        table: that is ALTERING.
        version_of: the highest schema version that a replica of a tablet has shown.
        time: returns a hybrid time above the stamps of the versions that replicas have reported.
    """

    def decide(catalog: Catalog) -> CatalogPlan:
        now = catalog.table(table.id)
        found = [] if now is None else opening(catalog, now, version_of)
        records = [t.edit() for t in found]
        for record in records:
            record.floor = max(1, time())
        return CatalogPlan(
            tuple(records), actions=tuple(create_table.create_orders(records)), answer=table.id
        )

    def scope(catalog: Catalog) -> Scope:
        return Scope(
            tables=(table.id,), tablets=tuple(t.id for t in catalog.tablets_of(table.id) if t.held)
        )

    return CatalogOperation("open ranges", scope, decide)


def finish(table: CatalogTable, version_of: Callable[[TabletId], int]) -> CatalogOperation:
    """Return the operation that ends an alteration: RUNNING again, if every tablet follows (S0.83)."""

    def decide(catalog: Catalog) -> CatalogPlan:
        now = catalog.table(table.id)
        if now is None or not is_finished(catalog, now, version_of):
            return CatalogPlan()
        record = now.edit()
        record.state = TableState.RUNNING.value
        record.ClearField("fully_applied_schema")
        return CatalogPlan(tables=(record,), answer=now.id)

    return CatalogOperation("finish alteration", lambda _: Scope(tables=(table.id,)), decide)
