"""Support of the scenario tests: a running cluster with a table and active clients, checked at the end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from nyala.client.core import ClientCore
from nyala.common.ids import TabletId
from nyala.common.options import Options
from tests.sim.runs.workload import Worker
from tests.sim.systems.cluster import OPTIONS, SimCluster
from tests.sim.systems.table_client import TableClient
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.process import SimProcess

Scenario = Callable[["ScenarioCluster"], Awaitable[None]]


class ScenarioCluster:
    """A cluster with one table `t` of one tablet and a client, and the actions of a scenario."""

    def __init__(self, cluster: SimCluster, core: ClientCore, client: TableClient) -> None:
        self.cluster = cluster
        self.loop = cluster.loop
        self.network = cluster.network
        self.core = core
        self.client = client
        self.owner = cluster.clients[0]

    @property
    def tablet(self) -> TabletId:
        """The table's only tablet."""
        return self.client.table.tablets[0].id

    @property
    def names(self) -> list[str]:
        """All processes, including clients."""
        return [p.name for p in (*self.cluster.servers, *self.cluster.clients)]

    async def do(self, fn: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Run an async function as the client's process."""
        return await self.cluster.run(self.owner, fn, *args)

    async def leader(self, but: SimProcess | None = None) -> SimProcess:
        """Wait until the tablet has a leader other than `but`; return it."""

        def found() -> SimProcess | None:
            leader = self.cluster.leader_of(self.tablet)
            return None if leader is but else leader

        await self.cluster.until(found, "a leader of the tablet")
        leader = found()
        assert leader is not None
        return leader

    async def followers(self) -> list[SimProcess]:
        """The tablet's other replicas."""
        leader = await self.leader()
        return [s for s in self.cluster.tservers if s is not leader]

    async def acknowledged(self, more: int = 20, timeout_s: float = 30) -> None:
        """Wait until that many further operations are acknowledged."""
        history = self.cluster.history
        target = history.acknowledged + more
        await self.cluster.until(lambda: history.acknowledged >= target, "progress", timeout_s)

    async def death(self, process: SimProcess) -> None:
        """Wait for the prepared crash of a process."""
        await self.cluster.until(lambda: not process.alive, f"the death of {process.name}")

    async def seconds(self, duration_s: float) -> None:
        """Let virtual time pass."""
        await self.loop.delay(duration_s * 1e6)


def dies_in(operation: str, part: str) -> Callable[[str, str], bool]:
    """Return a `die_when` for the next such file operation on a path that contains this part."""
    return lambda kind, path: kind == operation and part in path


def play(
    scenario: Scenario,
    seed: int = 1,
    *,
    workers: int = 3,
    options: Options = OPTIONS,
    prepare: Callable[[SimCluster], None] = lambda cluster: None,
) -> SimCluster:
    """Run a scenario on a fresh cluster under load, then heal, check histories and invariants.

    Args:
        scenario: what happens.
        seed: of all choices.
        workers: number of clients.
        options: of all servers.
        prepare: called before the servers are started.
    """

    async def main(loop: SimLoop) -> SimCluster:
        cluster = SimCluster(loop, seed, options=options)
        prepare(cluster)
        core = await cluster.start()
        table = await cluster.create_table(core)
        running = ScenarioCluster(cluster, core, TableClient(core, table))
        await cluster.add_workers(workers)
        await _run_and_check(scenario, running)
        return cluster

    return run(main, max_time_s=600)


async def reads_from_paused_leaders(running: ScenarioCluster) -> None:
    """Pause a leader, let its successor change rows, resume it with pending reads."""
    cluster, history = running.cluster, running.cluster.history
    for turn in range(4):
        leader = await running.leader()
        leader.pause()
        await running.leader(but=leader)
        await running.acknowledged(30, timeout_s=60)
        asking = []
        for n in range(12):
            core = cluster.client()
            process = cluster.clients[-1]
            table = await cluster.run(process, core.open_table, "t")
            client = TableClient(core, table)  # type: ignore[arg-type]
            client.table.tablets[0].leader = leader.address
            worker = Worker(running.loop, client, history, seeded(turn, n))
            asking.append(process.run(worker.read, history.pick(cluster.network.rng)))
        await running.seconds(0.02)
        leader.resume()
        await asyncio.gather(*asking)
        await running.acknowledged(20, timeout_s=60)


async def _run_and_check(scenario: Scenario, running: ScenarioCluster) -> None:
    await scenario(running)
    cluster = running.cluster
    cluster.network.heal()
    for server in cluster.servers:
        server.resume()
        if not server.alive:
            server.start()
    await cluster.finish()
