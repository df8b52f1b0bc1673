"""Service for clients: definition and look-up of tables.

Only the leader changes definitions; any master answers look-ups within the staleness that is allowed. The
work of an operation is in its plan, the content of an answer in `queries.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from nyala.common.errors import InvalidArgument, Unavailable
from nyala.common.hybrid_time import from_micros
from nyala.common.ids import TableId
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.master.catalog import queries
from nyala.master.catalog.follower_catalog import CatalogSnapshot
from nyala.master.ddl import alter_table, create_table, drop_table, kinds, recall_table
from nyala.master.ddl.create_table import PlanInputs
from nyala.master.ddl.operation import CatalogOperation
from nyala.master.group.peers import MasterPeers
from nyala.master.leader import MasterLeadership, Term
from nyala.master.tservers import TServers
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

CLIENT_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class MasterContext:
    """The parts of one master that its services share.

    Attributes:
        env: the environment: clock, tasks, files, calls.
        options: options of this master.
        servers: the tablet servers known to this master.
        peers: the other masters.
        leading: the role; None until this master has its sys catalog.
        waiting: returns the reason why it has none yet.
        info: this master's registration.
        status: this master's MasterStatus.
    """

    env: Env
    options: Options
    servers: TServers
    peers: MasterPeers
    leading: Callable[[], MasterLeadership | None]
    waiting: Callable[[], str]
    info: Callable[[], pb.ServerInfoResponse]
    status: Callable[[], pb.MasterStatusResponse]

    def require_leading(self) -> MasterLeadership:
        """Return the role.

        Raises:
            Unavailable: this master has no sys catalog yet; the message has the reason.
        """
        found = self.leading()
        if found is None:
            raise Unavailable(self.waiting())
        return found

    async def confirmed(self) -> Term:
        """Return the term in which this master leads, as `MasterLeadership.confirmed`."""
        return await self.require_leading().confirmed()

    async def look_up(self, wanted: pb.Staleness) -> CatalogSnapshot:
        """Return a catalog to read from, as `MasterLeadership.look_up`."""
        return await self.require_leading().look_up(wanted)

    def now(self) -> int:
        """Return a hybrid time at or above the stamp of everything that was done here."""
        return self.info().hybrid_time

    def next_time(self, seen: int) -> int:
        """Return a hybrid time above those that a client and the live tablet servers have reported.

        It is the time of this master's clock, unless that is ahead of all tablet servers: these would wait
        for it. What a client has seen counts up to `clock_max_ahead_ms` ahead of this master.

        Args:
            seen: hybrid time that the client has seen.
        """
        wall_us, options = self.env.clock.wall_us(), self.options
        reported = self.servers.time(wall_us)
        late_us = 2 * options.server_heartbeat_ms * 1000
        own = min(self.now(), reported + from_micros(late_us)) if reported else self.now()
        limit = from_micros(wall_us + options.clock_max_ahead_ms * 1000)
        return 1 + max(own, reported, seen if seen <= limit else 0)


class MasterService:
    """Control plane for clients. On the loop only.

    Args:
        context: context of this master.
    """

    def __init__(self, context: MasterContext) -> None:
        self._context = context
        self._started_us = context.env.clock.monotonic_us()

    def handlers(self) -> Handlers:
        """Return the methods that this service answers."""
        return {
            methods.SERVER_INFO: self.server_info,
            methods.MASTER_STATUS: self.master_status,
            methods.POLL_MASTER: self.master_status,
            methods.CREATE_TABLE: self.create_table,
            methods.DROP_TABLE: self.drop_table,
            methods.ALTER_TABLE: self.alter_table,
            methods.RECALL_TABLE: self.recall_table,
            methods.LIST_TABLES: self.list_tables,
            methods.DESCRIBE_TABLE: self.describe_table,
            methods.TABLET_LOCATIONS: self.tablet_locations,
            methods.LIST_SERVERS: self.list_servers,
        }

    async def server_info(self, request: pb.ServerInfoRequest) -> pb.ServerInfoResponse:
        """Return this server's registration, in any state."""
        return self._context.info()

    async def master_status(self, request: pb.MasterStatusRequest) -> pb.MasterStatusResponse:
        """Return this master's MasterStatus, in any state."""
        return self._context.status()

    async def create_table(self, request: pb.CreateTableRequest) -> pb.CreateTableResponse:
        """Create a table; durable on return. Its tablets are created in the background.

        Raises:
            AlreadyPresent, InvalidArgument, TooLarge: nothing was created.
            NotLeader, Unavailable, Throttled, TimedOut: nothing was created by this call.
            OutcomeUnknown: retry with the same operation id.
        """
        _check_operation(request.operation)
        term = await self._context.confirmed()
        if create_table.executed(term.catalog, request.operation) is None:
            replicas = request.table.replicas or self._context.options.replicas
            await _wait_for_servers(self._context, self._started_us, term, replicas)
        wanted = create_table.operation(request, _plan_inputs(self._context))
        table_id = await self._run(wanted, term)
        return pb.CreateTableResponse(table_id=table_id, at=self._context.now())

    async def alter_table(self, request: pb.AlterTableRequest) -> pb.AlterTableResponse:
        """Alter a table; durable on return, its tablets follow in the background.

        Raises:
            NotFound, AlreadyPresent, InvalidArgument, TooLarge: nothing was altered.
            NotLeader, Unavailable, Throttled, TimedOut, OutcomeUnknown: as `create_table`.
        """
        _check_operation(request.operation)
        term = await self._context.confirmed()
        table = queries.search(term.catalog, request.name, request.id)
        replicas = 0 if table is None else alter_table.servers_for(table, request.steps)
        if replicas:
            await _wait_for_servers(self._context, self._started_us, term, replicas)
        inputs = replace(
            _plan_inputs(self._context),
            time=lambda: self._context.next_time(request.propagated_time),
        )
        wanted = alter_table.operation(request, inputs)
        table_id = await self._run(wanted, term)
        table = term.catalog.table(table_id)
        assert table is not None, table_id
        version = table.version
        return pb.AlterTableResponse(
            table_id=table_id, schema_version=version, at=self._context.now()
        )

    async def recall_table(self, request: pb.RecallTableRequest) -> pb.RecallTableResponse:
        """Recall a dropped table; durable on return.

        Raises:
            NotFound, AlreadyPresent, InvalidArgument: nothing was recalled.
            NotLeader, Unavailable, Throttled, TimedOut, OutcomeUnknown: as `create_table`.
        """
        _check_operation(request.operation)
        term = await self._context.confirmed()
        table_id = await self._run(recall_table.operation(request), term)
        return pb.RecallTableResponse(table_id=table_id, at=self._context.now())

    async def drop_table(self, request: pb.DropTableRequest) -> pb.DropTableResponse:
        """Drop a table, at once or with a time in which it can be recalled; durable on return.

        Its replicas are deleted in the background once it cannot be recalled any more.

        Raises:
            NotFound, InvalidArgument: nothing was dropped.
            NotLeader, Unavailable, Throttled, TimedOut, OutcomeUnknown: as `create_table`.
        """
        _check_operation(request.operation)
        term = await self._context.confirmed()
        wanted = drop_table.operation(request, self._context.env.clock.wall_us())
        table_id = await self._run(wanted, term)
        return pb.DropTableResponse(table_id=table_id, at=self._context.now())

    async def _run(self, wanted: CatalogOperation, term: Term) -> TableId:
        """Run an operation; return the table that it is about."""
        plan = await self._context.require_leading().run(wanted, term)
        assert plan.answer is not None, plan
        return plan.answer

    async def list_tables(self, request: pb.ListTablesRequest) -> pb.ListTablesResponse:
        """Return the tables of a kind, by name. Any master, within the staleness that is allowed."""
        seen = await self._context.look_up(request.staleness)

        def answer() -> pb.ListTablesResponse:
            listed = queries.list_tables(seen.catalog, request)
            term = self._context.require_leading().current()
            for table in listed.tables:
                if term is not None and table.quota_bytes:
                    table.bytes = term.quotas.size_of(TableId(table.id)) or 0
            return listed

        return seen.answer(answer)

    async def describe_table(self, request: pb.DescribeTableRequest) -> pb.DescribeTableResponse:
        """Return the description of a table. Any master, as `list_tables`.

        Raises:
            NotFound: no such table.
            InvalidArgument: it is of another kind.
            HistoryGone: the columns at the time `at` are not kept any more.
        """
        kind = kinds.rules_of(request.kind).machine
        seen = await self._context.look_up(request.staleness)
        servers = self._context.servers

        def answer() -> pb.DescribeTableResponse:
            table = queries.find(seen.catalog, request.name, request.id, kind)
            kinds.check_kind(table, request.kind)
            described = queries.describe(seen.catalog, servers, table, request.at)
            term = self._context.require_leading().current()
            if term is not None and described.quota_bytes:
                described.bytes = term.quotas.bytes_of(table) or 0
            return described

        return seen.answer(answer)

    async def tablet_locations(
        self, request: pb.TabletLocationsRequest
    ) -> pb.TabletLocationsResponse:
        """Return the locations of tablets. Any master, as `list_tables`."""
        seen = await self._context.look_up(request.staleness)
        servers, options = self._context.servers, self._context.options

        def answer() -> pb.TabletLocationsResponse:
            found = queries.locations(seen.catalog, servers, request, options.locations_ttl_ms)
            found.write_max_bytes = options.write_max_bytes
            return found

        return seen.answer(answer)

    async def list_servers(self, request: pb.ListServersRequest) -> pb.ListServersResponse:
        """Return all masters, and the tablet servers that are listed or have reported. Any master."""
        seen = await self._context.look_up(request.staleness)
        status = self._context.require_leading().status()
        masters = self._context.peers.entries(status.leader, status.config.members)
        now_us = self._context.env.clock.monotonic_us()
        catalog = seen.catalog
        return pb.ListServersResponse(
            servers=masters + queries.tablet_servers(catalog, self._context.servers, now_us),
            cluster_id="" if catalog.cluster is None else catalog.cluster.cluster_id,
            as_of=seen.as_of,
        )


async def _wait_for_servers(
    context: MasterContext, started_us: int, term: Term, replicas: int
) -> None:
    """Wait after a start or an election until the tablet servers are known (S0.31, S0.32).

    That is at least as many as replicas are needed; after a start also all that the catalog names, so that a
    table is not placed only on those that reported first.
    """
    env, options = context.env, context.options
    warm_up_us = 2 * options.server_heartbeat_ms * 1000
    unresponsive_us = options.tserver_unresponsive_ms * 1000
    since_us = max(started_us, term.elected_us)
    while True:
        now_us = env.clock.monotonic_us()
        warm = now_us - started_us >= warm_up_us
        if warm and now_us - since_us >= unresponsive_us:
            return
        if warm and len(context.servers.alive(now_us)) >= replicas:
            named = () if now_us - started_us >= unresponsive_us else term.catalog.replica_counts()
            if all(context.servers.get(uuid) is not None for uuid in named):
                return
        term.memory.check()
        await env.tasks.sleep_ms(options.raft_tick_ms)


def _plan_inputs(context: MasterContext) -> PlanInputs:
    catalog = context.require_leading().require().catalog
    options = context.options
    return replace(
        create_table.plan_inputs(context.env, catalog, context.servers),
        max_tablets=options.tablets_per_table_max,
        default_replicas=options.replicas,
        history_s=options.history_max_age_s,
        max_definition_bytes=min(options.catalog_batch_bytes, options.write_max_bytes) // 2,
    )


def _check_operation(operation: pb.OperationId) -> None:
    if operation.client and len(operation.client) != CLIENT_ID_BYTES:
        raise InvalidArgument(
            f"an operation's client id is {CLIENT_ID_BYTES} bytes, not {len(operation.client)}"
        )
