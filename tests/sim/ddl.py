"""Clients that define tables, with names that collide, in a simulated cluster whose masters fail.

While they work, and when all is healed: no definition is half visible, the leader's memory equals what is
applied of its disk, names are unique, no replica is deleted that the catalog does not call deleted, what
belongs to nobody is left alone, and each table is what the answers to its client allow.
"""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa

from nyala.client.alter import AlterSteps
from nyala.client.core import ClientOptions, Core
from nyala.client.definitions import describe
from nyala.common.errors import AlreadyPresent, NotFound, NyalaError, Rejected, Retryable
from nyala.common.ids import SYS_CATALOG, TableId, TabletId
from nyala.common.keys import decode_keys, from_bytes
from nyala.common.partition import KeyRange, partitions
from nyala.common.partition_spec import Partition, Range
from nyala.master import sys_catalog
from nyala.master.catalog import Catalog
from nyala.master.plans import Plan
from nyala.master.records import Row, Table, TableState
from nyala.raft.membership import Member, initial
from nyala.replica.status import State
from nyala.tablet.tablet import Tablet
from nyala.tserver.server import TabletServer
from nyala.wire import convert
from tests.sim.cluster import SCHEMA, SimCluster
from tests.sim.ddl_model import DROPPED, GONE, PRESENT, Model, Modelled, Shape, altered
from tests.sim.loop import SimLoop, seeded
from tests.sim.process import SimProcess
from tests.sim.replicas import hosts_of

NAMES = ("a", "b", "c", "d", "e")
TABLES_EACH = 3
WIDTH = 10
RANGES = ((0, 10), (10, 20))
OPTIONS = ClientOptions(timeout_ms=15_000)


class Definer:
    """One client that defines tables of its own, one step after the other."""

    def __init__(self, cluster: SimCluster, model: Model, number: int) -> None:
        self.core: Core = cluster.client(OPTIONS)
        self.process = cluster.clients[-1]
        self._model = model
        self._loop = cluster.loop
        self._rng: random.Random = seeded(cluster.seed, "definer", number)
        self._mine: list[Modelled] = []
        self._columns = self._names = 0
        self.stopped = False

    async def run(self) -> None:
        """Work until `stopped`."""
        while not self.stopped:
            await self._loop.delay(self._rng.expovariate(1 / 100_000))
            await self._once()

    def _refused(self, err: Rejected) -> None:
        """Names collide, and servers are down: nothing else is refused."""
        assert isinstance(err, AlreadyPresent) or "live tablet servers" in err.message, err
        self._model.refused += 1

    async def _once(self) -> None:
        present = [t for t in self._mine if t.shape.state == PRESENT]
        dropped = [t for t in self._mine if t.shape.state == DROPPED]
        if len(present) + len(dropped) < TABLES_EACH:
            return await self._create()
        if dropped and self._rng.random() < 0.5:
            return await self._recall(self._rng.choice(dropped))
        if present:
            what = self._rng.choice([self._alter, self._alter, self._alter, self._drop])
            await what(self._rng.choice(present))

    def _name(self) -> str:
        """Draw a name: one of those that all want, or one of its own when too many are taken."""
        self._names += 1
        own = f"{self.process.name}.{self._names}"
        return own if self._rng.random() < 0.3 else self._rng.choice(NAMES)

    async def _create(self) -> None:
        name = self._name()
        spec = Partition(hash=[], range=Range(["k"], list(RANGES)))
        try:
            made = await self.core.ddl.create_table(name, SCHEMA, spec, 3, {})
        except Rejected as err:
            return self._refused(err)
        except NyalaError:
            self._model.unknown += 1  # whoever it belongs to, nobody touches it again
            return
        shape = Shape(PRESENT, name, ("k", "v"), RANGES)
        table = self._model.tables[made.id] = Modelled(made.id, shape)
        self._mine.append(table)
        self._model.acknowledged += 1

    async def _alter(self, table: Modelled) -> None:
        try:
            opened = await self.core.locations.open("", OPTIONS.timeout_ms, table_id=table.table_id)
        except Retryable:
            return
        steps, shape = AlterSteps(opened), table.shape
        kind = self._rng.choice(["add", "drop", "rename", "column", "range", "less"])
        if kind == "add":
            self._columns += 1
            name = f"c{self._columns}"
            steps.add_column(name, pa.int32())
            change = altered(columns=(*shape.columns, name))
        elif kind == "drop" and len(shape.columns) > 2:
            steps.drop_column(shape.columns[-1])
            change = altered(columns=shape.columns[:-1])
        elif kind == "rename":
            name = self._name()
            steps.rename(name)
            change = altered(name=name)
        elif kind == "range":
            top = shape.ranges[-1][1]
            steps.add_range(top, top + WIDTH)
            change = altered(ranges=(*shape.ranges, (top, top + WIDTH)))
        elif kind == "less" and len(shape.ranges) > 1:
            steps.drop_range(*shape.ranges[0])
            change = altered(ranges=shape.ranges[1:])
        else:
            self._columns += 1
            name = f"k{self._columns}"
            steps.rename_column(shape.columns[0], name)
            change = altered(columns=(name, *shape.columns[1:]))
        await self._define(table, self.core.ddl.alter_table(opened, steps.steps), change)

    async def _drop(self, table: Modelled) -> None:
        reserve = self._rng.choice([0, 3600, 3600])
        work = self.core.ddl.drop_table("", reserve, table_id=table.table_id)
        await self._define(table, work, altered(state=DROPPED if reserve else GONE))

    async def _recall(self, table: Modelled) -> None:
        name = self._name()
        work = self.core.ddl.recall_table(table.table_id, name)
        await self._define(table, work, altered(state=PRESENT, name=name))

    async def _define(self, table: Modelled, work: Any, change: Any) -> None:
        try:
            await work
        except Rejected as err:
            self._refused(err)
        except NyalaError:
            self._model.unknown += 1
            table.unknown(change)
            self._mine.remove(table)  # it may yet take effect: nobody touches the table again
        else:
            table.done(change)
            self._model.acknowledged += 1


async def look(core: Core, table: Modelled) -> Shape:
    """Return what a table is, as the masters say. Raises Retryable while they do not."""
    try:
        described = await describe(core.masters, "", OPTIONS.timeout_ms, table_id=table.table_id)
    except NotFound:
        dropped = [t.id for t in await core.tables(dropped=True)]
        state = DROPPED if table.table_id in dropped else GONE
        known = [s for s in table.possible if s.state == state]
        return known[0] if known else Shape(state, "", (), ())
    columns = tuple(c.name for c in described.table.schema.columns)
    ps = convert.partition_schema_from_proto(described.table.partition)
    return Shape(PRESENT, described.table.name, columns, tuple(map(_bounds, ps.ranges)))


def _bounds(piece: KeyRange) -> tuple[int, int]:
    assert piece.lower is not None, piece
    assert piece.upper is not None, piece
    (column,) = decode_keys(from_bytes([piece.lower, piece.upper]), [pa.int64()])
    low, high = column.to_pylist()
    return low, high


class CatalogWatch:
    """Checks the leader master and the tablet servers against each other."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.checks: Counter[str] = Counter()

    def look(self) -> None:
        """Check whatever can be checked now."""
        for process in self._cluster.masters:
            leading = getattr(process.server, "leading", None) if process.alive else None
            term = None if leading is None else leading.current()
            if term is None:
                continue
            self._whole(term.catalog)
            if not term.memory.in_flight:
                self._equals_disk(process, term.catalog)
        self._deletions()

    def _whole(self, catalog: Catalog) -> None:
        """No definition is half visible, and names are unique."""
        tablets: dict[str, list[Any]] = {}
        for tablet in catalog.tablets():
            tablets.setdefault(tablet.table_id, []).append(tablet)
        names: dict[str, str] = {}
        for table in catalog.every_table():
            live = [t for t in tablets[table.id] if t.live]
            if table.state is TableState.REMOVED:
                assert not live, f"{table.id} is removed, {[t.id for t in live]} are not"
                continue
            self._tablets_fit(table, live)
            altering = table.state is TableState.ALTERING
            assert table.record.HasField("fully_applied_schema") is altering, table.record
            if table.live:
                assert table.name not in names, (table.name, table.id, names[table.name])
                names[table.name] = table.id
        self.checks["catalog whole"] += 1

    def _tablets_fit(self, table: Table, live: list[Any]) -> None:
        schema = convert.schema_from_proto(table.spec.schema)
        ps = convert.partition_schema_from_proto(table.spec.partition)
        wanted = partitions(schema, ps)
        found = [convert.partition_from_proto(t.record.partition) for t in live]
        assert len(found) == len(wanted), (table.id, len(found), len(wanted))
        assert set(found) == set(wanted), table.id

    def _equals_disk(self, process: SimProcess, catalog: Catalog) -> None:
        for host in hosts_of(process):
            replica = host.find(SYS_CATALOG)
            if replica is None or not isinstance(replica.machine, Tablet):
                return
            at = replica.status().applied_stamp
            rows = {(r.kind, r.id): r for r in sys_catalog.scan(replica.machine.view(), at)}
            assert rows == rows_of(catalog), f"{process.name}: memory is not what its disk holds"
            self.checks["memory equals disk"] += 1

    def _deletions(self) -> None:
        """Whatever a tablet server has deleted, the newest catalog calls deleted, or has without it."""
        catalog = self._newest()
        if catalog is None:
            return
        for process in self._cluster.tservers:
            for host in hosts_of(process):
                for replica in host.all():
                    if replica.state is not State.TOMBSTONED:
                        continue
                    tablet = catalog.tablet(replica.group)
                    assert tablet is not None, f"{process.name} deleted {replica.group} of nobody"
                    assert isinstance(process.server, TabletServer), process.server
                    member = process.server.uuid in tablet.members
                    assert not (tablet.live and member), f"{process.name} deleted {tablet.id}"
                    self.checks["deletions"] += 1

    def _newest(self) -> Catalog | None:
        """Return what is applied on the disk that is furthest."""
        best: tuple[int, Catalog] | None = None
        for process in self._cluster.masters:
            for host in hosts_of(process):
                replica = host.find(SYS_CATALOG)
                if replica is None or not isinstance(replica.machine, Tablet):
                    continue
                at = replica.status().applied_stamp
                if at and (best is None or at > best[0]):
                    made = Catalog()
                    made.load(sys_catalog.scan(replica.machine.view(), at))
                    best = at, made
        return None if best is None else best[1]


def rows_of(catalog: Catalog) -> dict[tuple[str, str], Row]:
    """Return what the disk of a catalog has to hold."""
    tables = tuple(t.record for t in catalog.every_table())
    tablets = tuple(t.record for t in catalog.tablets())
    plan = Plan(tablets, tables, catalog.cluster)
    return {(r.kind, r.id): r for r in catalog.draft(plan).rows}


ORPHAN = TabletId("0f" * 16)
"""A replica that no catalog knows of."""


async def plant_orphan(process: SimProcess) -> None:
    """Give a tablet server a replica of a tablet of nobody."""
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


def orphan_lives(process: SimProcess) -> bool:
    """Whether the tablet of nobody is where it was."""
    return any(
        r.group == ORPHAN and r.state is State.RUNNING for h in hosts_of(process) for r in h.all()
    )


async def define(
    loop: SimLoop, cluster: SimCluster, model: Model, definers: int, watch: CatalogWatch
) -> tuple[list[Definer], list[asyncio.Task[None]], asyncio.Task[None]]:
    """Start clients at work, and a look at everything every quarter of a second."""
    made = [Definer(cluster, model, number) for number in range(definers)]

    async def looking() -> None:
        while True:
            await loop.delay(250_000)
            watch.look()

    return made, [d.process.run(d.run) for d in made], loop.create_task(looking())


async def settled(core: Core, model: Model) -> None:
    """All is healed: each table is what its client was told, or may be."""
    for table in model:
        while True:
            try:
                table.saw(await look(core, table))
                break
            except Retryable:
                await core.env.tasks.sleep_ms(100)
