"""Create a table: request, catalog and live servers to plan. Pure; the random source is passed in."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

from nyala.common.errors import AlreadyPresent
from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.common.partition import Partition
from nyala.env.clock import random_id
from nyala.master import check_spec
from nyala.master.actions import CreateTabletAction
from nyala.master.catalog import Catalog
from nyala.master.operation import Operation
from nyala.master.placement import Candidate, place
from nyala.master.plans import Plan, Scope
from nyala.master.records import TableState, TabletState, operation_key
from nyala.raft import membership
from nyala.wire import convert
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a creation depends on besides the request and the catalog.

    Attributes:
        live: registrations of the live tablet servers.
        rng: chooses ids and servers.
        now_us: microseconds since the epoch, for people.
        max_tablets: the most tablets that one table may be created with.
        default_replicas: where the request names no number.
        table_options: names of the options that a table may have.
    """

    live: Sequence[pb.ServerInfoResponse]
    rng: Random
    now_us: int
    max_tablets: int
    default_replicas: int
    table_options: Collection[str] = ()


def operation(request: pb.CreateTableRequest, around: Circumstances) -> Operation:
    """Return the operation that creates a table: its name is locked until the batch is replicated."""
    return Operation(
        what="create table",
        scope=lambda _: Scope(names=(request.table.name,)),
        plan=lambda catalog: plan(catalog, request, around),
    )


def plan(catalog: Catalog, request: pb.CreateTableRequest, around: Circumstances) -> Plan:
    """Decide what creating a table writes and orders.

    Returns:
        One table record and a record per tablet with its first configuration (S0.4); a plan that
        writes nothing when this operation was executed already.

    Raises:
        AlreadyPresent: a table has this name.
        InvalidArgument: the definition is not one of a table, or too few servers live.
    """
    done = executed(catalog, request.operation)
    if done is not None:
        return Plan(answer=done)
    spec, parts = check_spec.checked(
        request.table, around.default_replicas, around.max_tablets, around.table_options
    )
    existing = catalog.named(spec.name)
    if existing is not None:
        raise AlreadyPresent(
            f"a table {spec.name!r} exists already (id {existing.id}); drop it first, or choose "
            "another name"
        )
    placed = place_all(catalog, around, len(parts), spec.replicas)
    table = cat.TableRecord(
        id=random_id(around.rng),
        state=TableState.RUNNING.value,
        spec=spec,
        created_by=request.operation,
        created_us=around.now_us,
    )
    tablets = tuple(
        new_tablet(TableId(table.id), part, servers, around)
        for part, servers in zip(parts, placed, strict=True)
    )
    actions = tuple(
        CreateTabletAction(ServerUuid(m.uuid), TabletId(t.id))
        for t in tablets
        for m in t.consensus.members
    )
    return Plan(tablets, (table,), actions=actions, answer=TableId(table.id))


def executed(catalog: Catalog, operation_id: pb.OperationId) -> TableId | None:
    """Return the table that this operation made already; None when it was not executed."""
    if not operation_id.client:
        return None
    return catalog.created_by(operation_key(operation_id))


def place_all(
    catalog: Catalog, around: Circumstances, tablets: int, replicas: int
) -> list[tuple[ServerUuid, ...]]:
    """Choose the servers of new tablets.

    Raises:
        InvalidArgument: more replicas than live servers.
    """
    counts = catalog.replica_counts()
    candidates = [
        Candidate(ServerUuid(s.uuid), s.location, counts.get(ServerUuid(s.uuid), 0))
        for s in around.live
    ]
    return place(candidates, tablets, replicas, around.rng)


def new_tablet(
    table_id: TableId,
    part: Partition,
    servers: Sequence[ServerUuid],
    around: Circumstances,
    version: int = 0,
) -> cat.TabletRecord:
    """Return the record of a new tablet, whose log begins with a version of the table's schema."""
    registered = {s.uuid: s for s in around.live}
    first = membership.initial(
        membership.Member(s, registered[s].peer_address, registered[s].address) for s in servers
    )
    return cat.TabletRecord(
        id=random_id(around.rng),
        table_id=table_id,
        state=TabletState.CREATING.value,
        partition=convert.partition_to_proto(part),
        consensus=convert.consensus_to_proto(first, 0, None),
        created_us=around.now_us,
        first_schema_version=version,
    )
