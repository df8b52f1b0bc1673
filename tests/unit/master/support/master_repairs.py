"""A catalog, reporting servers and their repairs, for the tests of the repair planner."""

from typing import Any

from nyala.common.options import Options
from nyala.master.catalog.actions import ChangeMembersAction
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.catalog.records.tables import TableState, TabletState
from nyala.master.ddl import server_states
from nyala.master.repair.repairer import Repairer
from nyala.master.tservers import TServers
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.master.scenarios.report_notation import fill
from tests.unit.master.support.master_helpers import create_request, server_info

mark: Any = server_states.mark
TERM = 5
FAILED_US = 1_000_000


class RepairScenario:
    """A catalog of some tablets, servers that report, and their repairs."""

    def __init__(self, tablets=1, replicas=3, **limits):
        self.now_us = 1
        self.catalog: Any = Catalog()
        self.servers: Any = TServers(10**12)
        self.sequence = 0
        spec = create_request("t", replicas=replicas).table
        table = cat.TableRecord(id="t", state=TableState.RUNNING.value, spec=spec)
        self.names = [f"t{n}" for n in range(tablets)]
        records = [
            cat.TabletRecord(id=n, table_id="t", state=TabletState.RUNNING.value)
            for n in self.names
        ]
        cluster = cat.ClusterRecord(cluster_id="c")
        self.publish(CatalogPlan(tuple(records), (table,), cluster))
        made = Options(member_failed_after_ms=FAILED_US // 1000, **limits)
        self.repairs: Any = Repairer(self.catalog, self.servers, TERM, made, lambda: self.now_us)

    def publish(self, plan):
        self.catalog.publish(self.catalog.draft(plan))

    def server(self, name, *words, location="", catalog=False):
        """A full report: `t0=a/1@1.1:a,b,c`, see report_notation.py; `catalog`: the records have it too."""
        reports = []
        for word in words:
            tablet, _, rest = word.partition("=")
            report = pb.TabletReport(tablet_id=tablet)
            fill(report, name, rest)
            reports.append(report)
            if catalog:
                record = self.catalog.tablet(tablet).edit()
                record.consensus.CopyFrom(report.consensus)
                self.publish(CatalogPlan((record,)))
        self.sequence += 1
        request = pb.HeartbeatRequest(
            server=server_info(name, location),
            full=True,
            report_sequence=self.sequence,
            tablets=reports,
        )
        server = self.servers.record_heartbeat(request, self.now_us)
        self.servers.record_report(server, request, TERM)

    def group(self, config="1.1:a,b,c", failed="", others="bc"):
        """Report every tablet as led by a in one configuration; servers in `others` report theirs too."""
        words = [f"{n}=a/1@{config}" for n in self.names]
        self.server("a", *(w + (f"!{failed}" if failed else "") for w in words), catalog=True)
        for name in others:
            self.server(name, *words)

    def listed(self, *names):
        entries = [pb.ListedServer(uuid=u, version=n, alive=True) for n, u in enumerate(names, 1)]
        self.publish(CatalogPlan(servers=tuple(entries)))

    def mark(self, name, **what):
        self.publish(mark(name, **what).plan(self.catalog))

    def due_orders(self):
        return self.repairs.due_orders()

    def added(self):
        return [a.step.server for a in self.due_orders() if isinstance(a, ChangeMembersAction)]
