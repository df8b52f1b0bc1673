"""Scenarios of commands that add and remove masters."""

from tests.sim.faults.master_changes import addresses, change, new_master, operator
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import run
from tests.unit.cli.support.member_commands import Wire


class Scenario:
    """A cluster, and commands that change its masters."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.core = None

    @property
    def masters(self):
        """Addresses of the masters, as the leader reports them."""
        leader = self.cluster.leader_master()
        config = leader.server.leading.status().committed_config
        return sorted(m.address for m in config.members)

    def a_master(self, *known, start=True):
        made = new_master(self.cluster, *(known or self.masters[:1]))
        if start:
            made.start()
        return made

    async def do(self, verb, address, *, known=(), timeout_ms=20_000, **wire):
        """Run one command to its end; return it, and the voters."""
        carried = (lambda rpc: Wire(rpc, **wire)) if wire else None
        known = known or [next(m.address for m in self.cluster.masters if leading(m))]
        group = operator(self.cluster, *known, wire=carried, timeout_ms=timeout_ms)
        return group, addresses(await change(self.cluster, group, verb, address))

    async def ask(self, address, method, request):
        self.cluster.client()
        me = self.cluster.clients[-1]

        async def asked():
            return await me.env.rpc.call(address, method, request, timeout_ms=3_000)

        return await self.cluster.run(me, asked)

    async def until(self, holds, what, timeout_s=30):
        await self.cluster.until(holds, what, timeout_s)


def with_scenario(work, masters=1, max_time_s=600, **more):
    async def main(loop):
        cluster = SimCluster(loop, 11, masters=masters, **more)
        scenario = Scenario(cluster)
        scenario.core = await cluster.start()
        await work(scenario)
        cluster.look()

    run(main, max_time_s=max_time_s)


def leading(process):
    """Return the leadership of that master; None: it does not run, or is no master."""
    return process.server.leading if process.alive and process.server else None
