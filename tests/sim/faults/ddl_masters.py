"""Additions and removals of masters of a simulated cluster while clients define tables.

A removed master is stopped permanently, and its replacement is new. The next command completes an
interrupted one.
"""

from collections import Counter

from nyala.common.errors import NyalaError
from nyala.operate.group_view import GroupView
from nyala.operate.master_group import MasterGroup
from tests.sim.faults.master_changes import new_master, operator
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import seeded
from tests.sim.world.process import SimProcess

MASTERS = 3
TIMEOUT_MS = 8_000
PAUSE_US = 6_000_000
FINISH_S = 120


class MasterHand:
    """Changes the group of masters, one at a time.

    Args:
        cluster: of three masters.
        victims: servers with faults; the list is updated.
    """

    def __init__(self, cluster: SimCluster, victims: list[SimProcess]) -> None:
        self._cluster = cluster
        self._victims = victims
        self._rng = seeded(cluster.seed, "masters")
        known = [m.address for m in cluster.masters]
        self._group: MasterGroup = operator(cluster, *known, timeout_ms=TIMEOUT_MS)
        self.process = cluster.clients[-1]
        self._spare: SimProcess | None = None
        self.done: Counter[str] = Counter()
        self.stopped = False

    async def run(self) -> None:
        """Run until `stopped`, and then until there are three masters again."""
        loop = self._cluster.loop
        while not self.stopped:
            await loop.delay(self._rng.expovariate(1 / PAUSE_US))
            await self._once()
        end = loop.time() + FINISH_S
        while self._spare is not None or not await self._right():
            assert loop.time() < end, f"the masters are not {MASTERS} within {FINISH_S} s"
            await self._once()
            await loop.delay(100_000)

    async def _right(self) -> bool:
        group = await self._look()
        return group is not None and self._voters(group) == len(group.config.members) == MASTERS  # type: ignore[union-attr]

    async def _look(self) -> GroupView | None:
        try:
            group = await self._group.view()
        except NyalaError:
            return None
        return group if group.config is not None else None

    def _voters(self, group: GroupView) -> int:
        assert group.config is not None
        return len(group.config.voters)

    async def _once(self) -> None:
        group = await self._look()
        if group is None:
            return
        if self._spare is not None:
            await self._add(self._spare)
        elif self._voters(group) > MASTERS:
            await self._remove(group)
        elif not self.stopped:
            known = [m.address for m in self._cluster.masters if m in self._victims]
            self._spare = new_master(self._cluster, *known)
            self._victims.append(self._spare)
            self._spare.start()

    async def _add(self, spare: SimProcess) -> None:
        try:
            await self._group.add(spare.address)
        except NyalaError as err:
            self._left("add", err)
        else:
            self.done["master added"] += 1
            self._spare = None

    async def _remove(self, group: GroupView) -> None:
        assert group.config is not None
        address = self._rng.choice([m.address for m in group.config.members])
        process = next(m for m in self._cluster.masters if m.address == address)
        try:
            await self._group.remove(address)
        except NyalaError as err:
            self._left("remove", err)
        else:
            self.done["master removed"] += 1
            self._victims.remove(process)
            process.kill(power_cut=False)

    def _left(self, what: str, err: NyalaError) -> None:
        self._cluster.loop.trace.note("masters_left", f"{what} {err}")
        self.done["masters left"] += 1
