"""Create a table: request, catalog and live servers to plan. Pure; the random source is passed in."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from nyala.common.errors import AlreadyPresent
from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.common.partitioning.partition import TabletPartition
from nyala.env.clock import random_id
from nyala.env.env import Env
from nyala.master.catalog.actions import CreateTabletAction
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.catalog.records.tables import TableState, TabletState, operation_key
from nyala.master.ddl import kinds, table_spec
from nyala.master.ddl.operation import CatalogOperation
from nyala.master.ddl.placement import Candidate, place
from nyala.master.tservers import TServers
from nyala.raft import membership
from nyala.wire import convert
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Inputs of a creation besides the request and the catalog.

    Attributes:
        live: registrations of the live tablet servers.
        rng: chooses ids and servers.
        now_us: microseconds since the epoch, for operators.
        max_tablets: maximum number of tablets of a new table.
        default_replicas: number of replicas if the request gives none.
        opening: number of further live servers that are still opening their replicas.
        max_definition_bytes: maximum size of a definition; 0: any.
        history_s: seconds of history of a table that names none.
        time: returns a hybrid time from which an alteration is to take effect for reads.
    """

    live: Sequence[pb.ServerInfoResponse]
    rng: Random
    now_us: int
    max_tablets: int = 0
    default_replicas: int = 0
    opening: int = 0
    max_definition_bytes: int = 0
    history_s: int = 0
    time: Callable[[], int] = lambda: 0


def plan_inputs(env: Env, catalog: Catalog, servers: TServers) -> PlanInputs:
    """Return the inputs of a creation: live servers, neither in maintenance nor decommissioned.

    Args:
        env: the environment: clock, tasks, files, calls.
        catalog: the leader's catalog.
        servers: the tablet servers known to this master.
    """
    excluded = [s.uuid for s in catalog.servers.all() if s.maintenance or s.decommission]
    live = servers.alive(env.clock.monotonic_us())
    usable = [s for s in live if s.uuid not in excluded]
    ready = [s.registration for s in usable if not s.opening]
    opening = len(usable) - len(ready)
    return PlanInputs(ready, env.random, env.clock.wall_us(), opening=opening)


def operation(request: pb.CreateTableRequest, inputs: PlanInputs) -> CatalogOperation:
    """Return the operation that creates a table: its name is locked until the batch is replicated."""
    return CatalogOperation(
        what="create table",
        scope=lambda _: Scope(names=(request.table.name,)),
        plan=lambda catalog: plan(catalog, request, inputs),
    )


def plan(catalog: Catalog, request: pb.CreateTableRequest, inputs: PlanInputs) -> CatalogPlan:
    """Decide what creating a table writes and orders.

    Args:
        catalog: the leader's catalog.
        request: request of the client.
        inputs: live servers, limits and randomness.

    Returns:
        One table record and a record per tablet with its first configuration (S0.4); a plan that
        writes nothing when this operation was executed already.

    Raises:
        AlreadyPresent: a table or journal has this name.
        InvalidArgument: the definition is invalid, or too few servers are live.
        TooLarge: the definition is over the limit, so that it could not be altered.
        Unavailable: too few of the live servers have opened their replicas.
    """
    done = executed(catalog, request.operation)
    if done is not None:
        return CatalogPlan(answer=done)
    rules = kinds.rules_of(request.table.kind)
    spec, parts = rules.checked(request.table, inputs.default_replicas, inputs.max_tablets)
    table_spec.check_size(spec, inputs.max_definition_bytes)
    existing = catalog.named(spec.name)
    if existing is not None:
        raise AlreadyPresent(
            f"a {existing.kind.name} {spec.name!r} exists already (id {existing.id}); drop it first, or "
            "choose another name"
        )
    placed = place_all(catalog, inputs, len(parts), spec.replicas)
    table = cat.TableRecord(
        id=random_id(inputs.rng),
        state=TableState.RUNNING.value,
        spec=spec,
        created_by=request.operation,
        created_us=inputs.now_us,
    )
    tablets = tuple(
        new_tablet(TableId(table.id), part, servers, inputs)
        for part, servers in zip(parts, placed, strict=True)
    )
    orders = tuple(create_orders(tablets))
    return CatalogPlan(tablets, (table,), actions=orders, answer=TableId(table.id))


def executed(catalog: Catalog, operation_id: pb.OperationId) -> TableId | None:
    """Return the table that this operation made already; None when it was not executed."""
    if not operation_id.client:
        return None
    return catalog.created_by(operation_key(operation_id))


def place_all(
    catalog: Catalog, inputs: PlanInputs, tablets: int, replicas: int, table: str = ""
) -> list[tuple[ServerUuid, ...]]:
    """Choose the servers of new tablets.

    Args:
        catalog: the leader's catalog.
        inputs: live servers and randomness.
        tablets: number of tablets.
        replicas: number of replicas of each tablet.
        table: id of the table; empty: a new table.

    Raises:
        InvalidArgument: more replicas than live servers.
        Unavailable: enough are live, but some are still opening their replicas.
    """
    counts = catalog.replica_counts()
    of_table = Counter(m for t in catalog.tablets_of(TableId(table)) for m in t.members)

    def candidate(server: pb.ServerInfoResponse) -> Candidate:
        uuid = ServerUuid(server.uuid)
        return Candidate(uuid, server.location, counts.get(uuid, 0), of_table[uuid])

    candidates = [candidate(s) for s in inputs.live]
    return place(candidates, tablets, replicas, inputs.rng, inputs.opening)


def new_tablet(
    table_id: TableId,
    part: TabletPartition,
    servers: Sequence[ServerUuid],
    inputs: PlanInputs,
    version: int = 0,
) -> cat.TabletRecord:
    """Return the record of a new tablet, whose log begins with a version of the table's schema.

    It is PREPARING until its servers are assigned. That state is never published: the servers are part of the
    same plan and batch (S0.67, S0.68).

    Args:
        table_id: id of the table.
        part: the tablet's partition.
        servers: ids of the servers of its replicas.
        inputs: live servers, limits and randomness.
        version: schema version with which its log begins.
    """
    record = cat.TabletRecord(
        id=random_id(inputs.rng),
        table_id=table_id,
        state=TabletState.PREPARING.value,
        partition=convert.partition_to_proto(part),
        created_us=inputs.now_us,
        first_schema_version=version,
    )
    assign(record, servers, inputs)
    return record


def assign(record: cat.TabletRecord, servers: Sequence[ServerUuid], inputs: PlanInputs) -> None:
    """Set the servers of a PREPARING tablet, which is CREATING then (S0.70).

    They are its first configuration, which has no entry in the log.

    Args:
        record: record of the tablet; changed in place.
        servers: ids of the servers of its replicas.
        inputs: live servers, limits and randomness.
    """
    assert record.state == TabletState.PREPARING.value, f"{record.id} has servers already"
    registered = {s.uuid: s for s in inputs.live}
    first = membership.initial(
        membership.Member(s, registered[s].peer_address, registered[s].address) for s in servers
    )
    record.consensus.CopyFrom(convert.consensus_to_proto(first, 0, None))
    record.state = TabletState.CREATING.value


def create_orders(tablets: Sequence[cat.TabletRecord]) -> list[CreateTabletAction]:
    """Return the orders to the members of new tablets."""
    return [
        CreateTabletAction(ServerUuid(m.uuid), TabletId(t.id))
        for t in tablets
        for m in t.consensus.members
    ]
