"""Recall of a dropped table within its reserve time: request and catalog to plan. Pure."""

from nyala.common.errors import NotFound
from nyala.common.ids import TableId
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.catalog.records.tables import CatalogTable, operation_key
from nyala.master.ddl import kinds, table_spec
from nyala.master.ddl.alter_table import changed, check_free, follow
from nyala.master.ddl.operation import CatalogOperation
from nyala.wire.proto import nyala_pb2 as pb


def operation(request: pb.RecallTableRequest) -> CatalogOperation:
    """Return the operation that recalls a table: the name that it gets and the table are locked."""
    return CatalogOperation(
        what="recall table",
        scope=lambda catalog: scope(catalog, request),
        plan=lambda catalog: plan(catalog, request),
    )


def scope(catalog: Catalog, request: pb.RecallTableRequest) -> Scope:
    """Return the table and the name that it gets."""
    table = catalog.table(TableId(request.id))
    if table is None:
        return Scope(names=(request.new_name,))
    return Scope((request.new_name or table.name,), (table.id,))


def plan(catalog: Catalog, request: pb.RecallTableRequest) -> CatalogPlan:
    """Decide what recalling a table writes. Its tablets were never touched (S0.43).

    Returns:
        A plan that writes nothing when this operation was executed already.

    Raises:
        NotFound: no dropped table has the id (any more).
        AlreadyPresent: another table has the name by now; recall it under a new one.
        InvalidArgument: the new name is none, or it is of another kind.
    """
    if request.operation.client:
        done = catalog.altered_by(operation_key(request.operation))
        if done is not None:
            return CatalogPlan(answer=done)
    table = catalog.table(TableId(request.id))
    if table is None or not table.recallable:
        raise NotFound(_refusal(request, table))
    kinds.check_kind(table, request.kind)
    spec = pb.TableSpec()
    spec.CopyFrom(table.spec)
    spec.name = request.new_name or table.name
    table_spec.check_name(spec.name, table.kind.name)
    check_free(catalog, table, spec.name)
    if spec.name != table.name:
        spec.schema.version += 1
    record = changed(catalog, table, spec, request.operation)
    record.purge_after_us = record.dropped_us = 0
    return CatalogPlan(tables=(record,), actions=tuple(follow(catalog, record)), answer=table.id)


def _refusal(request: pb.RecallTableRequest, table: CatalogTable | None) -> str:
    kind = kinds.rules_of(request.kind).machine if table is None else table.kind
    if table is None:
        reason = f"no {kind.name} has the id {request.id[:80]!r}"
    elif table.live:
        reason = f"the {table.kind.name} {table.name!r} (id {table.id}) is there"
    else:
        reason = f"the {table.kind.name} {table.name!r} (id {table.id}) was deleted permanently"
    return f"{reason}: there is nothing to recall; see: nyala {kind.name} list --dropped"
