"""Clients that define tables, with names that collide, in a simulated cluster whose masters fail.

Each table has one client that defines it and knows its possible states from the answers. The rules
for all tables together are in `checkers/ddl_rules.py`.
"""

import asyncio
import random
from collections import Counter
from typing import Any

import pyarrow as pa

from nyala.client.alter import AlterSteps
from nyala.client.cluster.ddl import describe
from nyala.client.core import ClientCore, ClientOptions
from nyala.common.errors import AlreadyPresent, NotFound, NyalaError, Rejected, Retryable
from nyala.common.ids import TableId
from nyala.common.keys.encoding import decode_keys, from_bytes
from nyala.common.partitioning.partition import KeyRange
from nyala.common.partitioning.partition_spec import Partition, Range
from nyala.operate.membership import Membership
from nyala.wire import convert
from tests.sim.checkers.ddl_model import DROPPED, GONE, PRESENT, Model, Modelled, Shape, altered
from tests.sim.checkers.ddl_rules import CatalogWatch
from tests.sim.systems.cluster import SCHEMA, SimCluster
from tests.sim.world.loop import SimLoop, seeded

NAMES = ("a", "b", "c", "d", "e")
RUSH_US = 500_000
"""Period at whose start all clients request a contended name at once."""
TABLES_EACH = 3
WIDTH = 10
RANGES = ((0, 10), (10, 20))
REPLICAS = (1, 3)
OPTIONS = ClientOptions(timeout_ms=15_000)
PROGRESS_MS = 8_000
"""Longest wait of a move for progress, in milliseconds; then it is abandoned."""


class Definer:
    """One client that defines tables of its own, one step after the other."""

    def __init__(
        self,
        cluster: SimCluster,
        model: Model,
        number: int,
        watch: CatalogWatch,
        pause_us: float,
    ) -> None:
        self.core: ClientCore = cluster.client(OPTIONS)
        self.process = cluster.clients[-1]
        self._cluster = cluster
        self._watch = watch
        self._model = model
        self._pause_us = pause_us
        self._loop = cluster.loop
        self._rng: random.Random = seeded(cluster.seed, "definer", number)
        self._mine: list[Modelled] = []
        self._columns = self._names = 0
        self.done: Counter[str] = Counter()
        self.stopped = False

    async def run(self) -> None:
        """Run until `stopped`."""
        while not self.stopped:
            await self._loop.delay(self._rng.expovariate(1 / self._pause_us))
            await self._once()

    def _refused(self, err: Rejected) -> None:
        """Check a refusal: only repeated names and missing servers are allowed reasons."""
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
            alter = self._alter
            what = self._rng.choice([alter, alter, alter, alter, alter, self._move, self._drop])
            await what(self._rng.choice(present))

    async def _name(self) -> str:
        """Draw a name: one of its own, one that all clients use, or a new one that others request now."""
        self._names += 1
        which = self._rng.random()
        if which < 0.4:
            return f"{self.process.name}.{self._names}"
        if which < 0.6:
            return self._rng.choice(NAMES)
        now_us = round(self._loop.time() * 1e6)
        rush = now_us // RUSH_US + 1
        await self._loop.delay(rush * RUSH_US - now_us)
        return f"rush.{rush}"

    async def _create(self) -> None:
        name = await self._name()
        spec = Partition(hash=[], range=Range(["k"], list(RANGES)))
        replicas = self._rng.choice(REPLICAS)
        try:
            made = await self.core.ddl.create_table(name, SCHEMA, spec, replicas, {})
        except Rejected as err:
            return self._refused(err)
        except NyalaError:
            self._model.unknown += 1  # in any case it is not used again
            return
        shape = Shape(PRESENT, name, ("k", "v"), RANGES, replicas)
        table = self._model.tables[made.id] = Modelled(made.id, shape)
        self._mine.append(table)
        self._model.acknowledged += 1
        self.done["create"] += 1

    async def _alter(self, table: Modelled) -> None:
        try:
            opened = await self.core.locations.open("", OPTIONS.timeout_ms, table_id=table.table_id)
        except Retryable:
            return
        steps, shape = AlterSteps(opened), table.shape
        kind = self._rng.choice(["add", "drop", "rename", "column", "range", "less", "replicas"])
        if kind == "add":
            self._columns += 1
            name = f"c{self._columns}"
            steps.add_column(name, pa.int32())
            change = altered(columns=(*shape.columns, name))
        elif kind == "drop" and len(shape.columns) > 2:
            steps.drop_column(shape.columns[-1])
            change = altered(columns=shape.columns[:-1])
        elif kind == "rename":
            name = await self._name()
            steps.rename(name)
            change = altered(name=name)
        elif kind == "range":
            top = shape.ranges[-1][1]
            steps.add_range(top, top + WIDTH)
            change = altered(ranges=(*shape.ranges, (top, top + WIDTH)))
        elif kind == "less" and len(shape.ranges) > 1:
            steps.drop_range(*shape.ranges[0])
            change = altered(ranges=shape.ranges[1:])
        elif kind == "replicas":
            (other,) = (n for n in REPLICAS if n != shape.replicas)
            steps.set_replicas(other)
            change = altered(replicas=other)
        else:
            kind = "column"
            self._columns += 1
            name = f"k{self._columns}"
            steps.rename_column(shape.columns[0], name)
            change = altered(columns=(name, *shape.columns[1:]))
        work = self.core.ddl.alter_table(opened, steps.steps)
        await self._define(table, kind, work, change)

    async def _move(self, table: Modelled) -> None:
        """Move a replica by an operator's tool; repair or crashes may interrupt it."""
        catalog = self._watch.catalog()
        tablets = [] if catalog is None else catalog.tablets_of(TableId(table.table_id))
        if not tablets:
            return
        tablet = self._rng.choice([t for t in tablets if t.live])
        members = list(tablet.members)
        servers = [
            p.server.uuid for p in self._cluster.tservers if p.alive and p.server is not None
        ]
        free = [uuid for uuid in servers if uuid not in members]
        if not members or not free:
            return
        move = Membership(self.core, tablet.id, timeout_ms=PROGRESS_MS)
        try:
            await move.move(self._rng.choice(members), self._rng.choice(free))
        except NyalaError:
            self.done["move left"] += 1
        else:
            self.done["move"] += 1

    async def _drop(self, table: Modelled) -> None:
        reserve = self._rng.choice([0, 3600, 3600])
        work = self.core.ddl.drop_table("", reserve, table_id=table.table_id)
        kind = "drop" if reserve else "drop for good"
        await self._define(table, kind, work, altered(state=DROPPED if reserve else GONE))

    async def _recall(self, table: Modelled) -> None:
        name = await self._name()
        work = self.core.ddl.recall_table(table.table_id, name)
        await self._define(table, "recall", work, altered(state=PRESENT, name=name))

    async def _define(self, table: Modelled, kind: str, work: Any, change: Any) -> None:
        try:
            await work
        except Rejected as err:
            self._refused(err)
        except NyalaError:
            self._model.unknown += 1
            table.unknown(change)
            self._mine.remove(table)  # it may still take effect: the table is not used again
        else:
            table.done(change)
            self._model.acknowledged += 1
            self.done[kind] += 1


async def look(core: ClientCore, table: Modelled) -> Shape:
    """Return the state of a table according to the masters. Raises Retryable without an answer."""
    try:
        described = await describe(core.masters, "", OPTIONS.timeout_ms, table_id=table.table_id)
    except NotFound:
        dropped = [t.id for t in await core.tables(dropped=True)]
        state = DROPPED if table.table_id in dropped else GONE
        known = [s for s in table.possible if s.state == state]
        return known[0] if known else Shape(state, "", (), (), 0)
    columns = tuple(c.name for c in described.table.schema.columns)
    ps = convert.partition_schema_from_proto(described.table.partition)
    ranges = tuple(map(_bounds, ps.ranges))
    return Shape(PRESENT, described.table.name, columns, ranges, described.table.replicas)


def _bounds(piece: KeyRange) -> tuple[int, int]:
    assert piece.lower is not None, piece
    assert piece.upper is not None, piece
    (column,) = decode_keys(from_bytes([piece.lower, piece.upper]), [pa.int64()])
    low, high = column.to_pylist()
    return low, high


async def define(
    loop: SimLoop,
    cluster: SimCluster,
    model: Model,
    definers: int,
    watch: CatalogWatch,
    pause_us: float,
) -> tuple[list[Definer], list[asyncio.Task[None]]]:
    """Start the clients; from then on a violated rule ends the run."""
    made = [Definer(cluster, model, number, watch, pause_us) for number in range(definers)]
    watch.start()
    return made, [d.process.run(d.run) for d in made]


async def settled(core: ClientCore, model: Model) -> None:
    """Check after healing that each table has the state of its client's answers, or a possible one."""
    for table in model:
        while True:
            try:
                table.saw(await look(core, table))
                break
            except Retryable:
                await core.env.tasks.sleep_ms(100)
