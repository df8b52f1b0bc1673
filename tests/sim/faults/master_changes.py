"""Masters added to and removed from a simulated cluster while it runs, by the commands' own coroutines."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

from nyala.client.core import ClientCore, ClientOptions
from nyala.common.errors import NyalaError
from nyala.common.ids import SYS_CATALOG
from nyala.master.config import MasterConfig
from nyala.master.server import Master
from nyala.operate.group_view import GroupView
from nyala.operate.master_group import MasterGroup
from tests.sim.systems.cluster import SimCluster
from tests.sim.systems.replicas import hosts_of
from tests.sim.world.process import SimProcess

OPTIONS = ClientOptions(timeout_ms=15_000)
LEAST, MOST = 3, 5
"""Bounds of the number of voters that changes lead to."""


def new_master(cluster: SimCluster, *known: str) -> SimProcess:
    """Add a process for one more master to the cluster, and start it.

    Args:
        cluster: the cluster.
        known: addresses of masters that it is started with, beside its own.
    """
    made = cluster.process(f"master-{len(cluster.masters)}")
    config = MasterConfig(
        "/data",
        made.address,
        made.peer_address,
        master_addresses=(*known, made.address),
        options=cluster.options,
    )
    made.program = lambda env, transport: Master(env, config, transport)
    cluster.masters.append(made)
    cluster.names[made.name] = made
    return made


def operator(
    cluster: SimCluster, *known: str, wire: Any = None, timeout_ms: int = 20_000
) -> MasterGroup:
    """Return an operator's command on its own machine with some addresses of masters."""
    cluster.client()
    process = cluster.clients[-1]
    assert process.env is not None
    assert process.incarnation is not None
    env = process.env if wire is None else replace(process.env, rpc=wire(process.env.rpc))
    core = process.incarnation.inside(ClientCore, env, list(known), OPTIONS)
    return MasterGroup(core, timeout_ms=timeout_ms)


async def change(cluster: SimCluster, group: MasterGroup, verb: str, address: str) -> GroupView:
    """Carry out `add` or `remove` as the last client."""
    found = await cluster.run(cluster.clients[-1], getattr(group, verb), address)
    assert isinstance(found, GroupView)
    return found


def addresses(group: GroupView) -> list[str]:
    """The masters of a committed configuration that vote."""
    assert group.config is not None
    return sorted(m.address for m in group.config.members if m.voter)


class Changer:
    """Operator that adds and removes masters, one command after the other, many of them interrupted.

    Args:
        cluster: with its spare masters.
        rng: source of the choices.
    """

    def __init__(self, cluster: SimCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self.stopped = False
        self.changed: Counter[str] = Counter()

    def voters(self) -> list[str]:
        """Return the masters by the leader's answer; empty: no master leads."""
        leader = self._cluster.leader_master()
        leading = None if leader is None or leader.server is None else leader.server.leading
        config = None if leading is None else leading.status().committed_config
        return [] if config is None else sorted(m.address for m in config.members if m.voter)

    async def run(self) -> None:
        """Run until `stopped`."""
        while not self.stopped:
            await self._cluster.loop.delay(self._rng.expovariate(1 / 300_000))
            voters = self.voters()
            if voters:
                await self._once(voters)

    async def _once(self, voters: list[str]) -> None:
        spare = [m.address for m in self._cluster.masters if m.address not in voters]
        grow = len(voters) < LEAST or (spare and len(voters) < MOST and self._rng.random() < 0.5)
        verb, which = (
            ("add", self._rng.choice(spare)) if grow else ("remove", self._rng.choice(voters))
        )
        await self.do(verb, which, self._rng.choice([200, 1_000, 4_000]))

    async def do(self, verb: str, which: str, timeout_ms: int) -> bool:
        """Run one command, possibly interrupted; return whether it completed."""
        group = operator(
            self._cluster, *(m.address for m in self._cluster.masters), timeout_ms=timeout_ms
        )
        self._cluster.loop.trace.note("masters", f"{verb} {which}")
        try:
            await change(self._cluster, group, verb, which)
        except NyalaError as err:
            self._cluster.loop.trace.note(
                "masters_cut", f"{verb} {which} {type(err).__name__} {err}"
            )
            self.changed["cut"] += 1
            return False
        self.changed[verb] += 1
        return True

    async def finish(self) -> None:
        """Check after healing that there are three masters, and no other catalog."""
        while len(voters := self.voters()) != LEAST:
            spare = [m.address for m in self._cluster.masters if m.address not in voters]
            if voters and len(voters) < LEAST:
                assert await self.do("add", spare[0], 30_000), "a master cannot be added"
            elif voters:
                assert await self.do("remove", voters[0], 30_000), "a master cannot be removed"
            await self._cluster.loop.delay(100_000)
        for other in [m.address for m in self._cluster.masters if m.address not in voters]:
            await self.do("remove", other, 30_000)
        await self._cluster.until(self._settled, "only masters have a catalog")

    def _settled(self) -> bool:
        voters = self.voters()
        for master in self._cluster.masters:
            replicas = [host.find(SYS_CATALOG) for host in hosts_of(master)]
            is_member = any(r is not None and r.member is not None for r in replicas)
            if is_member is not (master.address in voters):
                return False
        return bool(voters)
