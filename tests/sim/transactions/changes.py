"""Changes of a table while transactions run on it: replicas move and are copied, columns come and go."""

import random
from dataclasses import dataclass

import pyarrow as pa

from nyala.client.alter import AlterSteps
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.common.errors import NyalaError
from nyala.operate.membership import Membership
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.process import SimProcess

MOVE_MS = 10_000


@dataclass(frozen=True, slots=True)
class ChangeRates:
    """Mean virtual seconds between two changes of a kind; 0: never."""

    move_s: float = 0.0
    alter_s: float = 0.0


class TableChanges:
    """Moves replicas of a table, and alters it.

    Args:
        cluster: the cluster, with more tablet servers than the table has replicas.
        process: client process that asks for the changes.
        core: its client.
        table: as it was opened first.
        rng: choices.

    Attributes:
        done: number of changes by kind; those whose outcome is not known are not among them.
    """

    def __init__(
        self,
        cluster: SimCluster,
        process: SimProcess,
        core: ClientCore,
        table: OpenTable,
        rng: random.Random,
    ) -> None:
        self.done = {"moved": 0, "altered": 0}
        self._cluster = cluster
        self._process = process
        self._core = core
        self._table = table
        self._rng = rng
        self._columns = 0

    async def move(self) -> None:
        """Move one replica to a server that has none; it is copied there."""
        tablet = self._rng.choice(self._table.tablets).id
        leader = self._cluster.leader_of(tablet)
        if leader is None:
            return
        members = [m.uuid for m in leader.server.host.get(tablet).status().committed_config.members]
        free = [
            p.server.uuid
            for p in self._cluster.tservers
            if p.alive and p.server is not None and p.server.uuid not in members
        ]
        if not free:
            return
        move = Membership(self._core, tablet, timeout_ms=MOVE_MS)
        old, new = self._rng.choice(members), self._rng.choice(free)
        try:
            await self._cluster.run(self._process, move.move, old, new)
        except NyalaError:
            return  # left as it is; the next move, or repair, continues it
        self.done["moved"] += 1

    async def alter(self) -> None:
        """Add a column, or drop the one that was added last."""
        try:
            await self._cluster.run(self._process, self._alter)
        except NyalaError:
            return
        self.done["altered"] += 1

    async def _alter(self) -> None:
        opened = await self._core.locations.open("", MOVE_MS, table_id=self._table.id)
        steps, last = AlterSteps(opened), opened.schema.columns[-1].name
        if last not in ("k", "v") and self._rng.random() < 0.5:
            steps.drop_column(last)
        else:
            self._columns += 1
            steps.add_column(f"c{self._columns}", pa.int32())
        await self._core.ddl.alter_table(opened, steps.steps)
