"""The master process: builds its parts and connects them. It opens no sockets.

The caller serves `handlers()` on the public port, before or after `start()`, and passes the transport of the
peer port. Masters that start for the first time find each other in the background.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from nyala.admin.registration import registration
from nyala.common.errors import InvalidArgument, NyalaError, Unavailable
from nyala.common.ids import SYS_CATALOG, ServerUuid
from nyala.common.metrics import Metrics
from nyala.datadir.identity import Identity
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.master.catalog.maintenance import CatalogMaintenance
from nyala.master.config import MasterConfig
from nyala.master.group import catalog_replica
from nyala.master.group.catalog_replica import MasterReplica
from nyala.master.group.member import GroupMember
from nyala.master.group.peers import MasterPeers
from nyala.master.leader import MasterLeadership, Term
from nyala.master.services import inspection
from nyala.master.services.access import AccessService
from nyala.master.services.accounts import AccountsService
from nyala.master.services.authorities import AuthoritiesService
from nyala.master.services.flight import FlightInfoService
from nyala.master.services.grants import GrantService
from nyala.master.services.group import GroupService
from nyala.master.services.heartbeats import HeartbeatService
from nyala.master.services.operations import listing
from nyala.master.services.operations.waits import LeaderView
from nyala.master.services.servers import ServersService
from nyala.master.services.tables import MasterContext, MasterService
from nyala.master.services.tablets import TabletsService
from nyala.master.services.transactions import TransactionsService
from nyala.master.tservers import TServers
from nyala.replica.host import ReplicaHost
from nyala.replica.state_machine import Transport
from nyala.security.tables.grants import TableRef
from nyala.web.pages import Listing
from nyala.web.targets import Target
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.tls.tables_of import How


class Master:
    """One master. On the loop that owns `env.tasks`.

    Args:
        env: the environment: clock, tasks, files, calls.
        config: addresses, data directory, options.
        transport: carries Raft's messages on the peer port.
        metrics: registry of this process; None: a new one.

    Attributes:
        tservers: the tablet servers that have reported to it, leader or not.
        identity: identity of its data directory.

    Raises:
        InvalidArgument: `config.address` is not among `config.master_addresses`, or one is twice.
    """

    def __init__(
        self,
        env: Env,
        config: MasterConfig,
        transport: Transport,
        metrics: Metrics | None = None,
    ) -> None:
        masters = config.master_addresses or (config.address,)
        if config.address not in masters or len(set(masters)) != len(masters):
            raise InvalidArgument(
                f"the masters are {', '.join(masters)}; name each once, this one ({config.address}) "
                "among them"
            )
        self._env = env
        self._config = config
        self._transport = transport
        self.metrics = metrics or Metrics()
        options = config.options
        self.tservers = TServers(
            options.tserver_unresponsive_ms * 1000, 2 * options.clock_max_ahead_ms * 1000
        )
        self._host: ReplicaHost | None = None
        self.identity = Identity(env, config.dir, "master", options.clock_max_ahead_ms)
        # What masters decide by the time of day follows no jump of one machine's clock.
        by_physical = replace(env, clock=self.identity.physical)
        self._peers = peers = MasterPeers(env, self.info, masters, options)
        self._member = member = GroupMember(
            by_physical, self.identity, peers, self.tservers, masters, options
        )
        context = MasterContext(
            env=by_physical,
            options=options,
            servers=self.tservers,
            peers=peers,
            leading=lambda: member.leading,
            waiting=member.status.waiting_reason,
            info=self.info,
            status=member.status.status,
        )
        authorities = AuthoritiesService(context, config)
        self._grants = GrantService(context, authorities)
        self._services = (
            MasterService(context),
            HeartbeatService(
                env,
                self.tservers,
                context.leading,
                member.status.header,
                options,
                self.metrics,
            ),
            FlightInfoService(context),
            ServersService(context),
            TabletsService(context),
            TransactionsService(context),
            AccessService(context, config),
            self._grants,
            AccountsService(context, config),
            authorities,
            GroupService(env, self.identity, self._open_host),
        )

    async def start(self) -> None:
        """Open or format the data directory and begin to serve.

        An initialised master has opened its sys catalog on return. A new one waits in the background until
        every other master has answered, or until it is added to an existing group; `failure` is set if that
        cannot succeed.

        Raises:
            Forbidden, InvalidArgument, Corrupt: the data directory cannot be used by this master.
        """
        clock = self.identity.open()
        uuid = self.identity.uuid
        host = await catalog_replica.open_host(
            self._env, self._config, uuid, clock, self._transport, self.metrics, self._peers.group,
            self._member.role_changed,
        )  # fmt: skip
        self._host = host
        await self._member.start(MasterReplica(self._env, self._config, host))
        CatalogMaintenance(self._env, lambda: host.find(SYS_CATALOG), self._config.options).start()

    def handlers(self) -> Handlers:
        """Return the handlers of all RPCs on the public port."""
        return {m: h for service in self._services for m, h in service.handlers().items()}

    def find_table(self, how: How, name: str) -> TableRef | None:
        """Return a table or journal; see `wire.tls.requests.Find`.

        Raises:
            NotLeader, Unavailable: this master does not lead: retry.
        """
        return self._grants.find(how, name)

    def master_addresses(self) -> Sequence[str]:
        """Return the public addresses of all masters, as far as this one knows them."""
        listed = self._member.status.header().master_addresses if self.identity.known else ()
        return listed or self._config.master_addresses or (self._config.address,)

    def _open_host(self) -> ReplicaHost:
        if self._host is None:
            raise Unavailable("this master is starting; retry")
        return self._host

    async def close(self) -> None:
        """Stop leading and close the files; everything acknowledged stays."""
        await self._member.stop()

    @property
    def uuid(self) -> ServerUuid:
        """This server's permanent id; known once `start` has returned."""
        return self.identity.uuid

    @property
    def cluster_id(self) -> str:
        """The cluster's id; empty until its first leader has created it and this master has read it."""
        return self.identity.instance.cluster_id if self.identity.known else ""

    @property
    def host(self) -> ReplicaHost | None:
        """The replicas, for status pages and tests; None before `start` has opened them."""
        return self._host

    @property
    def leading(self) -> MasterLeadership | None:
        """The leadership of this master; None until it has joined the masters' group."""
        return self._member.leading

    @property
    def failure(self) -> NyalaError | None:
        """Error that keeps this master from serving until an operator acts; None: there is none."""
        if self._member.failure is None and self.leading is not None:
            return self.leading.failure
        if self._member.failure is None and self._member.status.removed:
            return Unavailable(self._member.status.waiting_reason())
        return self._member.failure

    def pages(self) -> dict[str, Callable[[], Listing]]:
        """Return the pages of this master's memory; those of the catalog raise NotLeader when it follows."""

        def term() -> Term:
            if self.leading is None:
                raise Unavailable(self._member.status.waiting_reason())
            return self.leading.require()

        servers, now_us = self.tservers, self._env.clock.monotonic_us
        return {
            "/catalog": lambda: inspection.catalog_page(term()),
            "/tablets": lambda: inspection.tablets_page(term()),
            "/tservers": lambda: inspection.tservers_page(servers, now_us()),
            "/operations": lambda: listing.page(LeaderView(term(), servers, now_us())),
            "/masters": self._member.status.page,
        }

    def leader_web_address(self) -> str:
        """Return the address of the leader master's web port; empty: not known."""
        return self._member.status.leader_web_address()

    def targets(self) -> list[Target]:
        """Return the web ports of the masters that answer and of the live tablet servers."""
        live = self.tservers.alive(self._env.clock.monotonic_us())
        found = [self.info(), *self._peers.registrations(), *(s.registration for s in live)]
        return [Target(i.web_address, i.role, i.uuid, i.location) for i in found]

    def info(self) -> pb.ServerInfoResponse:
        """Return this server's registration. Raises Unavailable before `start`."""
        return registration(self.identity, "master", self._config)

    def status(self) -> pb.MasterStatusResponse:
        """Return this master's MasterStatus."""
        return self._member.status.status()
