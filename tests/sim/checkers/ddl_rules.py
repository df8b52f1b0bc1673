"""Rules of definitions at any time and at the end, under all clients and faults.

While clients define: no definition is partly visible, the leader's memory equals the applied rows of its
disk, names are unique, no replica is deleted unless it is removed by its group and the catalog, replicas of
unknown tablets are kept. At the end every tablet has a leader and its number of replicas, and there are no
others.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nyala.common.ids import SYS_CATALOG, TableId, TabletId
from nyala.common.partitioning.partition import partitions
from nyala.master.catalog import sys_catalog
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.catalog.records.rows import CatalogRow
from nyala.master.catalog.records.tables import CatalogTable, TableState
from nyala.master.leader import MasterLeadership, Term
from nyala.raft.membership import Member, initial
from nyala.raft.status import Role
from nyala.replica.status import State
from nyala.tablet.read.view import View
from nyala.tablet.tablet import Tablet
from nyala.tserver.server import TabletServer
from nyala.wire import convert
from tests.sim.systems.cluster import SimCluster
from tests.sim.systems.replicas import hosts_of
from tests.sim.world.process import SimProcess

LOOK_S, GLANCE_S = 0.25, 0.005
LATELY = 60_000_000 << 12
"""Microseconds of history in which the memory's state before an operation is looked up."""
EVERY = 4
"""Every n-th check compares memory with an unchanged disk too."""


class CatalogWatch:
    """Checks the leader master and the tablet servers against each other.

    Attributes:
        checks: number of checks of each rule.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.checks: Counter[str] = Counter()
        self._looks = 0
        self._next_look = self._next_glance = 0.0
        self._compared: dict[str, tuple[int, int]] = {}
        self._newest_at = 0
        self._newest = Catalog()
        self._fitting: set[tuple[bytes, ...]] = set()

    def start(self) -> None:
        """Check periodically between two steps; a violation ends the run."""
        loop, inner, network = self._cluster.loop, self._cluster.look, self._cluster.network

        def look() -> None:
            touched, called = (
                network.touched,
                network.called,
            )  # the sender of an order may crash at once
            masters = [p for p in self._cluster.masters if p.name in touched or p.name in called]
            called.clear()
            inner()
            for process in masters:
                self._read_newest(process)
            if loop.time() >= self._next_look:
                self._next_look = loop.time() + LOOK_S
                self.look()
            elif loop.time() >= self._next_glance:
                self._next_glance = loop.time() + GLANCE_S
                self.glance()

        loop.after_step = look

    def look(self) -> None:
        """Check all rules that apply now."""
        self._looks += 1
        for process, term in self._leading():
            self._whole(term.catalog)
            self._equals_disk(process, term)
        for process in self._cluster.masters:
            self._read_newest(process)
        self._deletions()
        assert not any(map(orphan_gone, self._cluster.tservers)), (
            "a replica of an unknown tablet was deleted"
        )

    def glance(self) -> None:
        """Check the masters alone, if a definition is under way."""
        for process, term in self._leading():
            if term.memory.in_flight:
                self._whole(term.catalog)
                self._equals_disk(process, term)

    def _leading(self) -> Iterator[tuple[SimProcess, Term]]:
        """Yield the masters that lead and are ready. `current` is not called: it drops an ended term."""
        for process in self._cluster.masters:
            leading: MasterLeadership | None = getattr(process.server, "leading", None)
            if not process.alive or leading is None or leading.term is None:
                continue
            status, memory = leading.status(), leading.term.memory
            ended = memory.dropped is not None or status.term != memory.term
            if not ended and status.role is Role.LEADER:
                yield process, leading.term

    def catalog(self) -> Catalog | None:
        """Return the state of the leader master; None: no master leads."""
        return next((term.catalog for _, term in self._leading()), None)

    def _whole(self, catalog: Catalog) -> None:
        """Check that no definition is partly visible, and names are unique."""
        tablets: dict[str, list[Any]] = {}
        for tablet in catalog.tablets():
            tablets.setdefault(tablet.table_id, []).append(tablet)
        names: dict[str, str] = {}
        for table in catalog.every_table():
            live = [t for t in tablets.get(table.id, ()) if t.live]
            if table.state is TableState.REMOVED:
                assert not live, f"{table.id} is removed, {[t.id for t in live]} are not"
                continue
            self._tablets_fit(table, [t for t in live if not t.dropped])
            altering = table.state is TableState.ALTERING
            assert table.record.HasField("fully_applied_schema") is altering, table.record
            if table.live:
                assert table.name not in names, (table.name, table.id, names[table.name])
                names[table.name] = table.id
        self.checks["catalog whole"] += 1

    def _tablets_fit(self, table: CatalogTable, live: list[Any]) -> None:
        spec = table.spec
        shown = (
            spec.schema.SerializeToString(),
            spec.partition.SerializeToString(),
            *(t.record.partition.SerializeToString() for t in live),
        )
        if shown in self._fitting:  # the memory depends on these bytes only
            return
        schema = convert.schema_from_proto(spec.schema)
        ps = convert.partition_schema_from_proto(spec.partition)
        wanted = partitions(schema, ps)
        found = [convert.partition_from_proto(t.record.partition) for t in live]
        assert len(found) == len(wanted), (table.id, len(found), len(wanted))
        assert set(found) == set(wanted), table.id
        self._fitting.add(shown)

    def _equals_disk(self, process: SimProcess, term: Term) -> None:
        """Check that memory equals the applied rows of the disk, which may have operations in flight too."""
        for host in hosts_of(process):
            replica = host.find(SYS_CATALOG)
            if replica is None or replica.member is None:
                return
            if not isinstance(replica.machine, Tablet):
                return
            at = replica.status().applied_stamp
            known = process.starts, at
            in_flight = bool(term.memory.in_flight)
            if not in_flight and self._compared.get(process.name) == known and self._looks % EVERY:
                return
            view, held = replica.machine.view(), rows_of(term.catalog)
            rows = {(r.kind, r.id): r for r in sys_catalog.scan(view, at)}
            if in_flight:
                other = {r for key, r in held.items() if rows.get(key) != r}
                assert other <= versions(view, at), f"{process.name}: memory is ahead of its disk"
                self.checks["memory not ahead of disk"] += 1
            else:
                self._compared[process.name] = known
                assert rows == held, f"{process.name}: memory differs from its disk"
                self.checks["memory equals disk"] += 1

    def _deletions(self) -> None:
        """Check that no server which deleted its replica of a live tablet is a known voter of it."""
        for process in self._cluster.tservers:
            for host in hosts_of(process):
                for replica in host.all():
                    if replica.state is State.TOMBSTONED:
                        self._check_deleted(process, replica.group)

    def _check_deleted(self, process: SimProcess, group: TabletId) -> None:
        self.checks["deletions"] += 1
        known = self._cluster.committed(group)
        assert isinstance(process.server, TabletServer), process.server
        voter = known is None or process.server.uuid in known.voters
        tablet = self._newest.tablet(group)
        assert tablet is not None, f"{process.name} deleted {group}, which is not in the catalog"
        assert not (tablet.live and voter), f"{process.name} deleted {tablet.id}"

    def _read_newest(self, process: SimProcess) -> None:
        """Read the applied rows of a master's disk if it is the furthest so far: orders may follow from them,
        and if all masters crash now the next leader begins with them."""
        for host in hosts_of(process):
            replica = host.find(SYS_CATALOG)
            if replica is None or replica.member is None:  # removed, or an incomplete copy
                continue
            if not isinstance(replica.machine, Tablet):
                continue
            at = replica.member.applier.applied_stamp
            if at > self._newest_at:
                self._newest_at, self._newest = at, Catalog()
                self._newest.load(sys_catalog.scan(replica.machine.view(), at))
                self._whole(self._newest)

    # ---- after healing ------------------------------------------------------------------------------

    def unsettled(self) -> str:
        """Return the tablets and servers that differ from the catalog; empty if there are none."""
        catalog = self.catalog()
        if catalog is None:
            return "no master leads"
        for table in catalog.tables():
            for tablet in catalog.tablets_of(table.id):
                if tablet.live and (why := self._lacking(tablet.id, table.spec.replicas)):
                    return f"tablet {tablet.id} of {table.name!r} {why}"
            self.checks["tables whole"] += 1
        for process in self._cluster.tservers:
            for host in hosts_of(process):
                for replica in host.all():
                    found = catalog.tablet(replica.group)
                    if replica.state is State.TOMBSTONED or replica.group == ORPHAN:
                        if found is not None and found.gone:
                            return (
                                f"{process.name} has a tombstone of {replica.group}, which is gone"
                            )
                        continue
                    known = self._cluster.committed(replica.group)
                    assert isinstance(process.server, TabletServer), process.server
                    if found is None or not found.live or known is None:
                        return f"{process.name} has {replica.group}, which is no tablet"
                    if known.get(process.server.uuid) is None:
                        return f"{process.name} has {replica.group}, and is no member of it"
        return ""

    def _lacking(self, tablet: TabletId, replicas: int) -> str:
        """Return the missing parts of a tablet: a leader, voters, or the data of a voter."""
        leader = self._cluster.leader_of(tablet)
        if leader is None:
            return "has no leader"
        config = hosts_of(leader)[0].get(tablet).status().committed_config
        if not len(config.voters) == len(config.members) == replicas:
            return f"is to have {replicas} replicas and has {config}"
        running = [
            process.server.uuid
            for process in self._cluster.tservers
            for host in hosts_of(process)
            if (replica := host.find(tablet)) is not None
            and replica.state is State.RUNNING
            and isinstance(replica.machine, Tablet)
        ]
        lost = sorted(set(config.voters) - set(running))
        return f"has voters that do not run: {lost}" if lost else ""


def versions(view: View, at: int) -> set[CatalogRow]:
    """Return the rows of a disk at recent times, up to a time."""
    since = max(view.horizon, at - LATELY)
    batches = view.changes(since, at, net=False)
    rows = set(sys_catalog.scan(view, since))
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("kind", "id", "body"))
        rows |= {CatalogRow(*values) for values in zip(*columns, strict=True)}
    return rows


def rows_of(catalog: Catalog) -> dict[tuple[str, str], CatalogRow]:
    """Return the rows that the disk of a catalog must have."""
    tables = tuple(t.record for t in catalog.every_table())
    tablets = tuple(t.record for t in catalog.tablets())
    plan = CatalogPlan(tablets, tables, catalog.cluster, tuple(catalog.servers.all()))
    return {(r.kind, r.id): r for r in catalog.draft(plan).rows}


ORPHAN = TabletId("0f" * 16)
"""A replica of a tablet without a catalog entry."""


async def plant_orphan(process: SimProcess) -> None:
    """Give a tablet server a replica of an unknown tablet."""
    (host,) = hosts_of(process)
    server = process.server
    assert isinstance(server, TabletServer), server
    assert process.env is not None, process.name
    files = process.env.files
    info = replace(sys_catalog.tablet_info(), tablet_id=ORPHAN, table_id=TableId("0e" * 16))
    config = initial([Member(server.uuid, process.peer_address, process.address)])

    async def make() -> None:
        await host.create_replica(ORPHAN, config, lambda d: Tablet.create(files, d, info))

    await process.run(make)


def orphan_gone(process: SimProcess) -> bool:
    """Return whether the tablet without a catalog entry was deleted."""
    found = [host.find(ORPHAN) for host in hosts_of(process)]
    return any(r is not None and r.state is State.TOMBSTONED for r in found)


def orphan_lives(process: SimProcess) -> bool:
    """Return whether the tablet without a catalog entry still runs."""
    return any(
        r.group == ORPHAN and r.state is State.RUNNING for h in hosts_of(process) for r in h.all()
    )
