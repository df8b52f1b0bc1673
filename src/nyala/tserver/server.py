"""Tablet server: identity, replicas, services, heartbeats. It opens no sockets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nyala.admin.deletion import DeletionService
from nyala.admin.fencing import Fence, OrderFence
from nyala.admin.group_members import GroupMembers, OnForeign
from nyala.admin.members_service import MembersService
from nyala.admin.registration import registration
from nyala.admin.unsafe_recovery_service import UnsafeRecoveryService
from nyala.common.errors import InvalidArgument, NyalaError, Unavailable
from nyala.common.ids import ServerUuid, TabletId
from nyala.common.metrics import Metrics
from nyala.common.options import Options
from nyala.copying.service import copy_handlers
from nyala.datadir.identity import Identity
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.env.tasks import Lane
from nyala.machines import registry
from nyala.replica.clock_offsets import MasterClocks
from nyala.replica.host import ReplicaHost
from nyala.replica.state_machine import StateMachine, Transport
from nyala.security.limits.caller_shares import CallerShares
from nyala.security.tables.grants import TableRef
from nyala.tserver.address_overrides import AddressOverrides
from nyala.tserver.checksums import Checksums
from nyala.tserver.compaction_scheduler import CompactionScheduler
from nyala.tserver.config import TabletServerConfig
from nyala.tserver.feeds.change_waits import ChangeWaits
from nyala.tserver.flight_service import FlightService
from nyala.tserver.flush_scheduler import FlushScheduler
from nyala.tserver.health import PeerHealth
from nyala.tserver.heartbeater import Heartbeater, Reporter
from nyala.tserver.history_holds import HistoryHolds
from nyala.tserver.journals.resident import JournalMemory
from nyala.tserver.journals.service import JournalService
from nyala.tserver.master_responses import MasterResponses
from nyala.tserver.masters import MasterList
from nyala.tserver.point_reads import PointReads
from nyala.tserver.quotas.hosted_quotas import HostedQuotas
from nyala.tserver.scans.open_scans import OpenScans
from nyala.tserver.scans.scan_memory import ScanMemory
from nyala.tserver.scans.scanners import Scanners
from nyala.tserver.splits import Splits
from nyala.tserver.startup_gate import StartupGate
from nyala.tserver.startup_reports import StartupReports
from nyala.tserver.tablet_metrics import TabletMetrics
from nyala.tserver.tablet_service import TabletService
from nyala.tserver.tablets import Tablets
from nyala.tserver.transactions.expiry import StageExpiry
from nyala.tserver.transactions.service import TransactionTablets
from nyala.tserver.transactions.undecided import UndecidedTransactions
from nyala.tserver.write_path import WritePath
from nyala.web.pages import Listing
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.tls.tables_of import How

SERVED = (
    methods.CREATE_TABLET, methods.DELETE_TABLET, methods.LIST_TABLETS, methods.HOLD_HISTORY,
    methods.ALTER_TABLET,
    methods.CHANGE_CONFIG, methods.LEADER_STEP_DOWN, methods.CREATE_WITNESS,
    methods.UNSAFE_CHANGE_CONFIG,
    methods.DO_GET, methods.DO_PUT, methods.GET, methods.CHECKSUM, methods.SPLIT_KEY_RANGE,
    methods.AWAIT_CHANGES,
    methods.JOURNAL_STEP, methods.JOURNAL_STEPS, methods.JOURNAL_READ, methods.JOURNAL_TAIL,
    methods.TXN_CHECK, methods.TXN_KEEP, methods.TXN_DROP, methods.TXN_PREPARE, methods.TXN_UNPREPARE,
    methods.TXN_RESOLVE, methods.TXN_STAGES,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Running:
    """Components that exist once the data directory is open."""

    host: ReplicaHost
    tablets: Tablets
    shown: TabletMetrics
    scans: OpenScans


def _data_plane(
    env: Env,
    tablets: Tablets,
    writes: WritePath,
    scans: ScanMemory,
    resident: JournalMemory,
    uuid: ServerUuid,
    options: Options,
    shares: CallerShares,
    open_scans: OpenScans,
) -> Handlers:
    """Return the handlers of reads and writes, of tables and journals."""
    memory = tablets.host.memory
    scanners = Scanners(env, tablets, uuid, options, scans, open_scans)
    flights = FlightService(env, writes, scanners, shares.scans)
    gets, sums = PointReads(env, tablets, options), Checksums(env, tablets, options)
    splits, waits = Splits(env, tablets), ChangeWaits(env, tablets, shares.waits)
    journals = JournalService(env, tablets, memory, resident, options, shares)
    return {
        **flights.handlers(),
        **gets.handlers(),
        **sums.handlers(),
        **splits.handlers(),
        **waits.handlers(),
        **journals.handlers(),
    }


def _control_plane(
    env: Env,
    tablets: Tablets,
    holds: HistoryHolds,
    orders: OrderFence,
    changed: Callable[[TabletId], None],
) -> Handlers:
    """Return the handlers of orders by masters and operators."""
    service = TabletService(env, tablets.host, tablets, holds, orders, changed)
    members = MembersService(env, tablets.host, orders)
    rescue = UnsafeRecoveryService(env, tablets.host, orders)
    deletion = DeletionService(tablets.host, orders)
    return {
        **service.handlers(),
        **members.handlers(),
        **rescue.handlers(),
        **deletion.handlers(),
    }


class TabletServer:
    """One tablet server. Used on the loop that owns `env.tasks`.

    Attributes:
        fence: the newest term of the masters, below which orders are refused.

    Args:
        env: the environment.
        config: addresses, data directory, options.
        transport: sends Raft messages between servers.
        metrics: None: a new registry.
        foreign: see `GroupMembers`.
    """

    def __init__(
        self,
        env: Env,
        config: TabletServerConfig,
        transport: Transport,
        metrics: Metrics | None = None,
        foreign: OnForeign = lambda *_: None,
    ) -> None:
        self._env = env
        self._config = config
        self._foreign = foreign
        self.metrics = metrics or Metrics()
        self._identity = Identity(env, config.dir, "tserver", config.options.clock_max_ahead_ms)
        self.fence = Fence()
        self._gate = StartupGate(SERVED)
        self._running: _Running | None = None
        self._opening = StartupReports(env.files, config.dir)
        interval_ms = config.options.server_heartbeat_ms
        self.masters = MasterList(env, self._identity, config.master_addresses, interval_ms)
        clocks = MasterClocks(env.clock)
        self._identity.physical.compare_with_masters(clocks.offsets_us)
        self._quotas = HostedQuotas(self.metrics)
        self.master_responses = MasterResponses(
            self._identity, self.fence, self.masters, clocks, self._quotas
        )
        self._transport = AddressOverrides(transport, self.master_responses.servers)
        reporter = Reporter(
            self.info, self._reports, self.master_responses.take, self.master_responses.refuse,
            lambda: self.master_responses.servers.known, lambda: 0 if self._running else self._opening.left,
            lambda: self._quotas.sizes(self._running.tablets) if self._running else [],
        )  # fmt: skip
        unresponsive_ms = config.options.tserver_unresponsive_ms
        self.heartbeater = Heartbeater(
            env, self.masters.current, reporter, interval_ms, unresponsive_ms
        )

    async def start(self) -> None:
        """Open or format the data directory, open every replica, start reporting and serving.

        Raises:
            Forbidden, InvalidArgument, Corrupt: the data directory does not fit this server.
            OSError: the data directory cannot be read or written.
        """
        if not self._config.master_addresses:
            raise InvalidArgument(
                "a tablet server needs the addresses of all masters; pass --master-addresses"
            )
        clock = self._identity.open()
        slow = self._env.tasks.spawn(self._report_opening(), "report while replicas are opened")
        try:
            host = await ReplicaHost.open(
                self._env, self._config.options, self._config.dir, self._identity.uuid, self._transport,
                clock, self._open_tablet, metrics=self.metrics, on_change=self.heartbeater.changed,
                members=GroupMembers(self._env, lambda: self.heartbeater.leader, self._foreign).find,
            )  # fmt: skip
        finally:
            slow.cancel()
        options, holds = self._config.options, HistoryHolds(self._env.clock)
        health = PeerHealth(self._env, host, options, self.heartbeater.changed)
        tablets = Tablets(host, health, holds)
        scans = ScanMemory(host.memory, options)
        resident = JournalMemory(self._env, tablets, host.memory)
        resident.expose(self.metrics)
        flushes = FlushScheduler(self._env, tablets, options, (scans.update_held, resident.refresh))
        flushes.start()
        orders = OrderFence(self._env, self._identity, self.fence)
        compactions = CompactionScheduler(self._env, tablets, holds, options)
        shown = TabletMetrics(tablets, flushes, compactions, holds, self._env.clock)
        open_scans = OpenScans(self._env.clock, options.scanners_max)
        self._running = _Running(host, tablets, shown, open_scans)
        self._running.shown.expose(self.metrics)
        shares = CallerShares(options, self.metrics)
        writes = WritePath(self._env, tablets, host.memory, options, shares.writes, self._quotas)
        data = _data_plane(
            self._env, tablets, writes, scans, resident, self.uuid, options, shares, open_scans
        )
        control = _control_plane(self._env, tablets, holds, orders, self.heartbeater.changed)
        transactions = TransactionTablets(self._env, tablets, self.fence, options)
        self._gate.open({**control, **data, **transactions.handlers()})
        UndecidedTransactions(
            self._env, tablets, self.uuid, lambda: self.heartbeater.leader
        ).start()
        StageExpiry(self._env, tablets, options).start()
        compactions.start()
        health.start()
        self.heartbeater.start()

    async def _report_opening(self) -> None:
        """Report the replicas to the masters if opening takes longer than two heartbeat intervals."""
        await self._env.tasks.sleep_ms(2 * self._config.options.server_heartbeat_ms)
        await self._env.tasks.run(Lane.DISK, self._opening.find)
        self.heartbeater.start()

    def _open_tablet(self, tablet: TabletId, directory: str) -> StateMachine:
        self._opening.begins(tablet)
        return registry.open_machine(self._env.files, directory)

    async def close(self) -> None:
        """Stop serving and close the files."""
        self._gate.close()
        self._opening.closing = True
        if self._running is not None:
            await self._running.host.close()
            self._running = None

    def find_table(self, how: How, name: str) -> TableRef | None:
        """Return the table of a tablet that runs here; see `wire.tls.requests.Find`.

        Raises:
            Unavailable: there is no replica of the tablet here, or this server is starting: retry.
        """
        return self._started().tablets.reference(name) if how is How.TABLET else None

    # -- handlers ---------------------------------------------------------------------------

    def handlers(self) -> Handlers:
        """Return all handlers; they raise Unavailable until the server has started."""
        check = OrderFence(self._env, self._identity, self.fence).check
        copies = copy_handlers(
            self._env, self._identity, lambda: self._started().host.copies, check
        )
        return {methods.SERVER_INFO: self._server_info, **copies, **self._gate.handlers()}

    def _started(self) -> _Running:
        if self._running is None:
            raise Unavailable(f"this tablet server is {self._opening.progress()}; retry")
        return self._running

    async def _server_info(self, _request: pb.ServerInfoRequest) -> pb.ServerInfoResponse:
        return self.info()

    def master_addresses(self) -> Sequence[str]:
        """Return the public addresses of the masters that this server knows."""
        return self.masters.current()

    # -- status --------------------------------------------------------------------

    @property
    def uuid(self) -> ServerUuid:
        """Permanent id of this server; known once `start` has opened the directory."""
        return self._identity.uuid

    @property
    def cluster_id(self) -> str:
        """Id of the cluster; empty until a master has sent it."""
        return self._identity.instance.cluster_id if self._identity.known else ""

    @property
    def host(self) -> ReplicaHost:
        """The replica host."""
        return self._started().host

    @property
    def tablets(self) -> Tablets:
        """The tablets."""
        return self._started().tablets

    def tablets_page(self) -> Listing:
        """Return the page of this server's tablets. Raises Unavailable before `start`."""
        return self._started().shown.page()

    def maintenance_page(self) -> Listing:
        """Return the page of flushes and compactions. Raises Unavailable before `start`."""
        return self._started().shown.maintenance_page()

    def scans_page(self) -> Listing:
        """Return the page of the open scans. Raises Unavailable before `start`."""
        return self._started().scans.page()

    def info(self) -> pb.ServerInfoResponse:
        """Return this server's registration."""
        info = registration(self._identity, "tserver", self._config, self._config.location)
        info.master_addresses.extend(self.masters.current())
        return info

    def _reports(self, only: Sequence[TabletId] | None) -> list[pb.TabletReport]:
        return (self._running.tablets if self._running else self._opening).reports(only)

    @property
    def failure(self) -> NyalaError | None:
        """Why this server does not belong to its masters' cluster; None: it does."""
        return self.master_responses.failure
