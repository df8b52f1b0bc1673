"""Losses of data on disks of a whole cluster while their server is down, beside a swarm's faults.

One server at a time, when all groups are complete; only faults of messages and slow disks until all are
complete again; a server loses data only when the others have it, and know its terms.
Tablet servers lose any data; FAILED replicas are replaced: on another server, in place if there is none.
Masters lose any data too, but only the last of them may be FAILED, since masters are not replaced
automatically.
Checks: two of three running servers accept writes, all groups become complete, acknowledged writes exist.
"""

import random

from nyala.common.ids import TabletId
from tests.sim.checkers.soundness import behind, sound
from tests.sim.faults.disk_losses import IMAGE, KINDS
from tests.sim.systems.cluster import SimCluster
from tests.sim.systems.replicas import hosts_of
from tests.sim.world.process import SimProcess

QUIET_S = 20
"""Seconds to wait for complete groups before a loss is postponed."""
WRITES_S = 60
WHOLE_S = 120
VOTERS = 3
"""Number of voters of a complete group."""


class ClusterLosses:
    """The losses of one run.

    Args:
        cluster: under load.
        rng: source of the choices.

    Attributes:
        given_up: the master that stays FAILED.
    """

    def __init__(self, cluster: SimCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self.given_up: SimProcess | None = None

    @property
    def away(self) -> set[str]:
        """Return the uuids of the master that lost data: it may stay FAILED, the others may not."""
        return set() if self.given_up is None else self._cluster.uuids(self.given_up)

    async def fault(self) -> None:
        """Let one server lose data, if all groups are complete."""
        cluster, rng = self._cluster, self._rng
        if self.given_up is not None or not await self._whole():
            cluster.loop.trace.note("loss_put_off", "")
            return
        holding = [p for p in cluster.tservers if any(q is p for q, _, _ in cluster.replicas())]
        victim = rng.choice(cluster.masters if rng.random() < 0.2 else holding)
        kind = rng.choice((IMAGE, *KINDS))
        image = victim.disk.image()
        await cluster.loop.delay(rng.choice((20, 300, 3000)) * 1000)
        victim.kill(power_cut=rng.random() < 0.5)
        groups = cluster.groups()
        await sound(cluster, groups, "all groups without a server", WRITES_S, cluster.uuids(victim))
        if kind == IMAGE:
            cluster.loop.trace.note("image_put_back", victim.name)
            cluster.put_back(victim.name)
            victim.disk.put_back(image)
        else:
            cluster.loop.trace.note("disk_loss", f"{victim.name} {kind}")
            KINDS[kind](victim, rng)
            if (
                victim in cluster.masters
            ):  # recorded now: `heal` may end this fault at its next wait
                self.given_up = victim
        target = cluster.history.writes + 3
        await cluster.until(lambda: cluster.history.writes >= target, "writes of two", WRITES_S)
        victim.start()
        await self._refilled(victim, kind)

    async def _whole(self) -> bool:
        """Wait for complete groups for a limited time."""
        cluster, wanted = self._cluster, dict[TabletId, int]()
        for _ in range(round(QUIET_S / 0.1)):
            all_hosted = all(s.alive and hosts_of(s) for s in cluster.servers)
            if all_hosted and not any(behind(cluster, cluster.groups(), wanted, voters=VOTERS)):
                return True
            await cluster.loop.delay(100_000)
        return False

    async def _refilled(self, victim: SimProcess, kind: str) -> None:
        """Wait until all groups are complete, with the same replicas or new ones."""
        cluster = self._cluster
        target = cluster.history.writes + 3
        await cluster.until(lambda: cluster.history.writes >= target, "writes of two", WRITES_S)
        what = f"{victim.name} after `{kind}`"
        await sound(cluster, cluster.groups(), what, WHOLE_S, self.away, VOTERS)
