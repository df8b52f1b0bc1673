"""Runs the scenarios in tests/scenarios/master: commands, then `----`, then the transcript.

The real services, plans, dispatcher and rebuild of three masters on virtual time; the sys catalog is one
shared table of rows that only the leader can write, and tablet servers act as the scenario defines. Only
facts are in a transcript: rows written, orders, answers. Tablets are named table.number.
NYALA_REWRITE=1 writes the transcripts into the files; read the diff.

    servers a b c@rack1       tablet servers that heartbeat to every master from now on
    silent a ... ; resume a   heartbeats stop; resume      restart a    with the replicas it has
    lead m1 | lead none       an election                  pass MS      time passes
    restart_master m1         it restarts without tablet servers
    fail refused|lost|unknown the next write is refused; lost with leadership; committed, outcome unknown
    create T [buckets=N] [replicas=N] [op=N]    tables [dropped]     describe T    locate T
    add, rename, drop, recall, and the commands about journals: see ddl_commands.py
    report a [full] [T.N=LEADER/TERM ...]       a heartbeat to every master: report_notation.py
    unanswered a ...          orders to these servers get no answer
    ask m2 tables             a request to another master
    rows                      rows of the sys catalog            forget T   removes its row: a damaged catalog
    flight T | flights        GetFlightInfo and GetSchema; ListFlights      list      ListServers
    maintenance a on|off      planned absence of a server         standby_plan [a ...]
    decommission a on|off     drain the server                      ops              long operations
    later MS COMMAND          the command runs then, while the scenario continues
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from nyala.common.errors import NyalaError
from nyala.common.hybrid_time import from_micros
from nyala.common.ids import SYS_CATALOG, ServerUuid
from nyala.env.env import Env
from nyala.master.catalog.records.parsing import parse
from nyala.master.catalog.records.rows import KIND_SERVER, CatalogRow
from nyala.master.catalog.records.tables import CatalogTable, CatalogTablet
from nyala.master.services.flight import FlightInfoService
from nyala.master.services.servers import ServersService
from nyala.master.services.tables import MasterService
from nyala.raft.membership import Configuration, Member
from nyala.raft.status import Role
from nyala.replica.status import ReplicaStatus, State
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.tasks import SimClock, SimTasks
from tests.unit.master.scenarios import report_notation
from tests.unit.master.scenarios.ddl_commands import DdlCommands, kind_of, state_text
from tests.unit.master.scenarios.scenario_masters import (
    HEARTBEAT_MS,
    MASTERS,
    MasterUnderTest,
    Orders,
)
from tests.unit.master.support.master_helpers import create_request, server_info

REWRITE = "NYALA_REWRITE"


class Scenario(DdlCommands):
    """One scenario while it runs."""

    def __init__(self, loop: SimLoop) -> None:
        rng = seeded(1, "story")
        tasks = SimTasks(loop, seeded(1, "lanes"))
        self.env = Env(SimClock(loop), rng, None, tasks, Orders(self))  # type: ignore[arg-type]
        self.lines: list[str] = []
        self.rows: dict[tuple[str, str], CatalogRow] = {}
        self.failure = ""
        self.leader, self.term = "none", 0
        self.unanswered: list[str] = []
        self.received: list[tuple[str, pb.HeartbeatRequest]] = []
        self.known: dict[str, pb.ServerInfoResponse] = {}
        self.speaking: dict[str, None] = {}
        self.replicas: dict[str, dict[str, str]] = {}
        self.sequence = 0
        self.restarts = 0
        self.names: dict[str, str] = {}
        self.masters = {name: MasterUnderTest(self, name) for name in MASTERS}
        tasks.spawn(self.keep_alive(), "heartbeats without news")

    def say(self, line: str) -> None:
        self.lines.append(line)

    # ---- names ---------------------------------------------------------------------------------

    def row_text(self, row: CatalogRow) -> str:
        item = parse(row)
        if isinstance(item, CatalogTable):
            return f"table {self.table_name(item)} {state_text(item)}"
        if isinstance(item, CatalogTablet):
            leader = item.consensus.leader
            led = f", led by {leader} in term {item.consensus.term}" if leader else ""
            seen = (
                ", seen on " + " ".join(item.record.reported_by) if item.record.reported_by else ""
            )
            name = self.tablet_name(item.id)
            on = " ".join(map(report_notation.member_text, item.consensus.members))
            return f"tablet {name} {item.state.name} on {on}{led}{seen}"
        return "cluster"

    def table_name(self, table: CatalogTable) -> str:
        if table.id not in self.names:
            again = sum(n.rstrip("'") == table.name for n in self.names.values())
            self.names[table.id] = table.name + "'" * again
        return self.names[table.id]

    def tablet_name(self, tablet_id: str) -> str:
        if tablet_id not in self.names:
            row = self.rows.get(("tablet", tablet_id))
            if row is None:
                return tablet_id
            tablet = parse(row)
            assert isinstance(tablet, CatalogTablet)
            table = parse(self.rows["table", tablet.table_id])
            assert isinstance(table, CatalogTable)
            prefix = self.table_name(table)
            number = sum(n.startswith(f"{prefix}.") for n in self.names.values())
            self.names[tablet_id] = f"{prefix}.{number}"
        return self.names[tablet_id]

    def tablet_id(self, name: str) -> str:
        return next((i for i, n in self.names.items() if n == name), name)

    # ---- the masters' group ----------------------------------------------------------------------

    def elect(self, name: str) -> None:
        self.leader = name
        self.term += name != "none"
        for master in self.masters.values():
            master.leading.role_changed()

    def status(self, name: str) -> ReplicaStatus:
        members = tuple(Member(ServerUuid(m), f"{m}:2", f"{m}:1") for m in MASTERS)
        config = Configuration(members)
        role = Role.LEADER if name == self.leader else Role.FOLLOWER
        leader = None if self.leader == "none" else ServerUuid(self.leader)
        running = State.RUNNING
        return ReplicaStatus(SYS_CATALOG, running, role, self.term, leader, config, config)

    # ---- tablet servers --------------------------------------------------------------------------

    async def keep_alive(self) -> None:
        while True:
            for server in self.speaking:
                await self.heartbeat(server, [], full=False, quiet=True)
            await self.env.tasks.sleep_ms(HEARTBEAT_MS)

    async def heartbeat(
        self, server: str, reports: list[pb.TabletReport], *, full: bool, quiet: bool = False
    ) -> None:
        self.sequence += 1
        self.known[server].hybrid_time = from_micros(self.env.clock.wall_us())
        for master in self.masters.values():
            answer = await master.heartbeats.heartbeat(
                pb.HeartbeatRequest(
                    server=self.known[server],
                    full=full,
                    report_sequence=self.sequence,
                    tablets=reports,
                )
            )
            if not quiet:
                acked = answer.acknowledged_sequence == self.sequence
                self.say(
                    f"{master.name} answers {server}: {'leader' if answer.leader else 'follower'}"
                    f"{', acknowledged' if acked else ''}"
                    f"{', wants a full report' if answer.needs_full_report else ''}"
                )

    def report_of(self, server: str, text: str) -> pb.TabletReport:
        name, _, rest = text.partition("=")
        rest, _, version = rest.partition("^")
        tablet_id = self.tablet_id(name)
        report = pb.TabletReport(tablet_id=tablet_id, schema_version=int(version or 0))
        row = self.rows.get(("tablet", tablet_id))
        tablet = None if row is None else parse(row)
        if isinstance(tablet, CatalogTablet):
            report.consensus.CopyFrom(tablet.consensus)
        report_notation.fill(report, server, rest)
        return report

    # ---- commands ------------------------------------------------------------------------------

    async def command(self, line: str) -> None:
        word, *rest = line.split()
        try:
            await getattr(self, f"do_{word}")(rest)
        except NyalaError as err:
            self.say(f"-> {err.code} {err.details.get('leader', '')}".rstrip())

    def service(self) -> MasterService:
        name = self.leader if self.leader != "none" else "m1"
        return self.masters[name].service

    async def do_servers(self, rest: list[str]) -> None:
        for word in rest:
            name, _, location = word.partition("@")
            self.known[name] = server_info(name, location)
            self.speaking[name] = None
            await self.heartbeat(name, [], full=True, quiet=True)

    async def do_silent(self, rest: list[str]) -> None:
        for name in rest:
            self.speaking.pop(name)

    async def do_resume(self, rest: list[str]) -> None:
        for name in rest:
            self.speaking[name] = None

    async def do_restart(self, rest: list[str]) -> None:
        for name in rest:
            self.known[name] = server_info(name, self.known[name].location)
            self.restarts += 1
            self.known[name].incarnation = self.restarts
            reports = [
                self.report_of(name, self.tablet_name(t) + "=none/0")
                for t in self.replicas.get(name, {})
            ]
            await self.heartbeat(name, reports, full=True)

    async def do_lead(self, rest: list[str]) -> None:
        self.elect(rest[0])

    async def do_restart_master(self, rest: list[str]) -> None:
        self.elect("none")
        self.masters[rest[0]].leading.stop()
        self.masters[rest[0]] = MasterUnderTest(self, rest[0])

    async def do_pass(self, rest: list[str]) -> None:
        await self.env.tasks.sleep_ms(int(rest[0]))

    async def do_later(self, rest: list[str]) -> None:
        async def after() -> None:
            await self.env.tasks.sleep_ms(int(rest[0]))
            self.say(f"later> {' '.join(rest[1:])}")
            await self.command(" ".join(rest[1:]))

        self.env.tasks.spawn(after(), "later")

    async def do_fail(self, rest: list[str]) -> None:
        self.failure = rest[0]

    async def do_unanswered(self, rest: list[str]) -> None:
        self.unanswered = rest

    async def do_create(self, rest: list[str]) -> None:
        options = dict(word.split("=") for word in rest[1:])
        request = create_request(
            rest[0], int(options.get("buckets", 1)), int(options.get("replicas", 3))
        )
        if "op" in options:
            request.operation.client = b"c" * 16
            request.operation.sequence = int(options["op"])
        answer = await self.service().create_table(request)
        self.say(f"-> {self.names[answer.table_id]}")

    async def do_ask(self, rest: list[str]) -> None:
        await self.tables(self.masters[rest[0]].service)

    async def do_tables(self, rest: list[str]) -> None:
        await self.tables(self.service(), dropped=bool(rest))

    async def tables(self, service: MasterService, *, dropped: bool = False) -> None:
        answer = await service.list_tables(pb.ListTablesRequest(dropped=dropped))
        for table in answer.tables:
            self.say(f"-> {table.name} {table.state} of {table.tablets} tablets")
        if not answer.tables:
            self.say("-> no tables")

    async def do_describe(self, rest: list[str]) -> None:
        request = pb.DescribeTableRequest(name=rest[0], kind=kind_of(rest))
        answer = await self.service().describe_table(request)
        ready = "ready" if answer.ready else "not ready"
        self.say(f"-> {answer.state}, {ready}, {answer.tablets_running} of {answer.tablets} run")

    async def do_locate(self, rest: list[str]) -> None:
        described = await self.service().describe_table(pb.DescribeTableRequest(name=rest[0]))
        request = pb.TabletLocationsRequest(table_id=described.id)
        for tablet in (await self.service().tablet_locations(request)).tablets:
            where = " ".join(r.address + ("*" if r.leader else "") for r in tablet.replicas)
            self.say(f"-> {self.tablet_name(tablet.id)} {tablet.state}: {where}")

    def flights(self) -> FlightInfoService:
        return self.masters[self.leader if self.leader != "none" else "m1"].flights

    async def do_flight(self, rest: list[str]) -> None:
        kind = flight_pb2.FlightDescriptor
        descriptor = kind(type=kind.PATH, path=rest)
        found = await self.flights().get_flight_info(descriptor)
        assert found.flight_descriptor == descriptor
        assert found.schema == (await self.flights().get_schema(descriptor)).schema
        schema = pa.ipc.read_schema(pa.py_buffer(found.schema))
        self.say(f"-> {', '.join(f'{f.name} {f.type}' for f in schema)}")
        for endpoint in found.endpoint:
            token = pb.ScanToken.FromString(endpoint.ticket.ticket)
            mode = pb.ReadMode.Name(token.mode)
            where = " ".join(location.uri for location in endpoint.location)
            name = self.tablet_name(token.tablet_id)
            self.say(
                f"-> {name} at {where}, {mode} {token.at}, replicas {' '.join(token.replicas)}"
            )

    async def do_flights(self, rest: list[str]) -> None:
        async for found in self.flights().list_flights(flight_pb2.Criteria()):
            self.say(f"-> {' '.join(found.flight_descriptor.path)}")

    async def do_list(self, rest: list[str]) -> None:
        for entry in (await self.service().list_servers(pb.ListServersRequest())).servers:
            alive = "alive" if entry.alive else "silent"
            leads = ", leads" if entry.leader else ""
            count = f", {entry.replicas} replicas" if entry.role == "tserver" else ""
            count += ", in maintenance" * entry.maintenance
            count += ", to be emptied" * entry.decommission
            self.say(f"-> {entry.role} {entry.uuid} {entry.address} {alive}{leads}{count}")

    def servers_service(self) -> ServersService:
        return self.masters[self.leader if self.leader != "none" else "m1"].servers_service

    async def do_maintenance(self, rest: list[str]) -> None:
        request = pb.SetMaintenanceRequest(uuid=rest[0], on=rest[1] == "on")
        await self.servers_service().set_maintenance(request)

    async def do_decommission(self, rest: list[str]) -> None:
        request = pb.SetDecommissionRequest(uuid=rest[0], on=rest[1] == "on")
        answer = await self.servers_service().set_decommission(request)
        self.say(f"-> {answer.replicas} replicas")

    async def do_unregister(self, rest: list[str]) -> None:
        await self.servers_service().unregister_server(pb.UnregisterServerRequest(uuid=rest[0]))

    async def do_ops(self, rest: list[str]) -> None:
        answer = await self.servers_service().inspect_master(pb.InspectMasterRequest())
        for o in answer.long_operations:
            subject = " ".join(map(self.tablet_name, o.subject.split()))
            self.say(f"-> {o.what} {subject}: {o.step}; committed by the {o.commit_point}")

    async def do_standby_plan(self, rest: list[str]) -> None:
        for plan in (
            await self.servers_service().standby_plans(pb.StandbyPlansRequest(uuids=rest))
        ).plans:
            left = (
                f"{self.tablet_name(b.tablet_id)} to {b.standby or 'none'}" for b in plan.standbys
            )
            self.say(f"-> {plan.uuid} leaves {', '.join(left) or 'nothing'}")

    async def do_report(self, rest: list[str]) -> None:
        full = rest[1:2] == ["full"]
        reports = [self.report_of(rest[0], word) for word in rest[2 if full else 1 :]]
        await self.heartbeat(rest[0], reports, full=full)

    async def do_forget(self, rest: list[str]) -> None:
        ids = {name: found for found, name in self.names.items()}
        del self.rows["table", ids[rest[0]]]

    async def do_rows(self, rest: list[str]) -> None:
        shown = [key for key in self.rows if key[0] != KIND_SERVER]
        for key in sorted(shown, key=lambda k: (k[0], self.names.get(k[1], ""))):
            self.say(self.row_text(self.rows[key]))


def play(commands: Sequence[str]) -> list[str]:
    """Run commands and return the transcript."""

    async def main(loop: SimLoop) -> list[str]:
        scenario = Scenario(loop)
        for command in commands:
            scenario.say(f"> {command}")
            await scenario.command(command)
        return scenario.lines

    return run(main)


def after(transcript: Sequence[str], command: str) -> list[str]:
    """Return the transcript of the last run of a command."""
    start = len(transcript) - 1 - transcript[::-1].index(f"> {command}")
    rest = transcript[start + 1 :]
    end = next((n for n, line in enumerate(rest) if line.startswith("> ")), len(rest))
    return list(rest[:end])


def run_file(path: Path) -> None:
    """Run one scenario file and compare, or rewrite it."""
    head, _, expected = path.read_text().partition("----\n")
    commands = [c for c in head.splitlines() if c.strip() and not c.startswith("#")]
    happened = "\n".join(play(commands)) + "\n"
    if os.environ.get(REWRITE):
        path.write_text(f"{head}----\n{happened}")
    else:
        assert happened == expected, f"{path.name}: run with {REWRITE}=1 and read the diff"
