"""The masters of a scenario: the real services over shared rows, and orders that are only recorded."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nyala.common.errors import NotLeader, OutcomeUnknown, Throttled, TimedOut, Unavailable
from nyala.common.options import Options
from nyala.env.clock import HybridClock
from nyala.master.catalog.records.parsing import parse
from nyala.master.catalog.records.rows import KIND_SERVER, CatalogRow
from nyala.master.catalog.records.tables import CatalogTablet
from nyala.master.group.peers import MasterPeers
from nyala.master.group.status import ResponseHeader
from nyala.master.leader import MasterLeadership
from nyala.master.services.flight import FlightInfoService
from nyala.master.services.heartbeats import HeartbeatService
from nyala.master.services.servers import ServersService
from nyala.master.services.tables import MasterContext, MasterService
from nyala.master.transactions.term import CoordinatorContext
from nyala.master.tservers import TServers
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.scenarios import report_notation
from tests.unit.master.support.master_helpers import master_status

if TYPE_CHECKING:
    from tests.unit.master.scenarios.master_runner import Scenario

MASTERS = ("m1", "m2", "m3")
HEARTBEAT_MS = 500
OPTIONS = Options(
    server_heartbeat_ms=HEARTBEAT_MS, order_interval_ms=HEARTBEAT_MS, order_timeout_ms=1000,
    orders_per_server=4, report_batch_tablets=2, tablets_per_table_max=100, locations_ttl_ms=30_000,
)  # fmt: skip


class SharedRows:
    """The sys catalog of all masters: rows in memory, one leader, one planned failure."""

    def __init__(self, scenario: "Scenario", master: str) -> None:
        self.scenario = scenario
        self.master = master

    async def replicate(self, rows: Sequence[CatalogRow]) -> None:
        scenario = self.scenario
        if all(row.kind == KIND_SERVER for row in rows):  # background writes, at any time
            if scenario.leader != self.master:
                raise NotLeader("not the leader")
            scenario.rows.update({(r.kind, r.id): r for r in rows})
            return
        failure, scenario.failure = scenario.failure, ""
        await scenario.env.tasks.sleep_ms(1)
        if scenario.leader != self.master:
            raise NotLeader("not the leader")
        if failure == "refused":
            scenario.say("a write is refused")
            raise Throttled("the queue is full")
        if failure != "lost":
            scenario.rows.update({(r.kind, r.id): r for r in rows})
            scenario.say("writes " + "; ".join(scenario.row_text(r) for r in rows))
        if failure:
            scenario.say(f"{self.master} loses leadership in flight")
            scenario.elect("none")
            raise OutcomeUnknown("leadership was lost")

    async def confirm(self) -> int:
        await self.scenario.env.tasks.sleep_ms(1)
        if self.scenario.leader != self.master:
            raise NotLeader("not the leader")
        return 1

    async def find(self, kind, row):
        return None

    async def keys(self, after, limit):
        return []

    async def rows(self) -> list[CatalogRow]:
        await self.confirm()
        return [self.scenario.rows[key] for key in sorted(self.scenario.rows)]


class Orders:
    """Client side of every master: orders reach tablet servers as the scenario defines."""

    def __init__(self, scenario: "Scenario") -> None:
        self.scenario = scenario

    async def call(self, address: str, method: Any, request: Any, *, timeout_ms: int) -> Any:
        scenario, server = self.scenario, address.partition(":")[0]
        if method is methods.SERVER_INFO:
            if server in scenario.unanswered:
                raise Unavailable("no answer")
            return pb.ServerInfoResponse(hybrid_time=100 + ord(server))
        if method is methods.HEARTBEAT:
            scenario.received.append((server, request))
            answer = await scenario.masters[server].heartbeats.heartbeat(request)
            if server in scenario.unanswered:
                raise TimedOut("the answer was lost")
            return answer
        if method is methods.LIST_TABLETS:
            (asked,) = request.tablet_ids
            known = parse(scenario.rows["tablet", asked])
            assert isinstance(known, CatalogTablet)
            return report_notation.leaders_word(known.consensus)
        text = f"{method.path.rpartition('/')[2]} {scenario.tablet_name(request.tablet_id)} to {server}"
        if server in scenario.unanswered:
            scenario.say(f"orders {text}, unanswered")
            raise Unavailable("no answer")
        term = f" in term {request.fence.term}" if hasattr(request, "fence") else ""
        scenario.say(f"orders {text}{term}{report_notation.order_text(method, request)}")
        answer_to_order = report_notation.answer(method, request)
        if answer_to_order is not None:
            return answer_to_order
        replicas = scenario.replicas.setdefault(server, {})
        if method is methods.ALTER_TABLET:
            return pb.AlterTabletResponse(schema_version=request.schema.version)
        if method is methods.CREATE_TABLET:
            replicas.setdefault(request.tablet_id, "RUNNING")
            return pb.CreateTabletResponse()
        replicas.pop(request.tablet_id, None)
        return pb.DeleteTabletResponse()


class MasterUnderTest:
    """One master's services over the shared rows."""

    def __init__(self, scenario: "Scenario", name: str) -> None:
        env, self.name = scenario.env, name
        servers = self.servers = TServers(5_000_000)
        self.leading = MasterLeadership(
            env,
            lambda: SharedRows(scenario, name),
            lambda: scenario.status(name),
            servers,
            OPTIONS,
            CoordinatorContext(HybridClock(env.clock), list),
        )
        own = pb.ServerInfoResponse(uuid=name, role="master", address=f"{name}:1")
        peers = MasterPeers(env, lambda: own, [f"{m}:1" for m in MASTERS], OPTIONS)
        parts = MasterContext(
            env,
            OPTIONS,
            servers,
            peers,
            lambda: self.leading,
            str,
            lambda: own,
            lambda: master_status(MASTERS),
        )
        self.flights = FlightInfoService(parts)
        self.service = MasterService(parts)
        self.servers_service = ServersService(parts)
        self.heartbeats = HeartbeatService(env, servers, lambda: self.leading, self.header, OPTIONS)
        self.scenario = scenario
        self.leading.start()

    def header(self) -> ResponseHeader:
        return ResponseHeader(
            self.name, "", "", self.scenario.term, tuple(f"{m}:1" for m in MASTERS)
        )
