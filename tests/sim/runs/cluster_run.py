"""One random run of the whole cluster: work under a swarm's faults, heal, make progress, check."""

import asyncio

from nyala.client.core import ClientCore
from nyala.common.options import Options
from tests.sim.checkers.ledger import Ledger
from tests.sim.checkers.outcome import Outcome
from tests.sim.checkers.soundness import sound
from tests.sim.faults.cluster_losses import VOTERS, ClusterLosses
from tests.sim.faults.far_clocks import FarClocks
from tests.sim.faults.nemesis import Nemesis
from tests.sim.faults.plan import Swarm
from tests.sim.runs.core_run import PAUSE_US, WRITES_PER_S, most_events
from tests.sim.systems.cluster import OPTIONS, REPAIRING, SimCluster
from tests.sim.systems.table_client import TableClient
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.trace import Recorder

CLIENTS = 6
SOUND_S = 120


async def _scenario(
    loop: SimLoop, seed: int, swarm: Swarm, seconds: float, options: Options
) -> Outcome:
    if swarm.loss_s and options is OPTIONS:  # lost data are replaced on another server, or in place
        tservers = 4 if seeded(seed, "spare").random() < 0.5 else 3
        cluster = SimCluster(loop, seed, tservers=tservers, options=REPAIRING)
    else:
        cluster = SimCluster(loop, seed, options=options)
    core = await cluster.start()
    await cluster.create_table(core, "t")
    table = await cluster.create_table(core, "ledger", tablets=2)
    await cluster.add_workers(CLIENTS, pause_us=PAUSE_US, writes_per_s=WRITES_PER_S)
    ledger = Ledger(loop, TableClient(core, table), seeded(seed, "ledger"))
    writing = cluster.clients[0].run(ledger.run)
    names = [p.name for p in (*cluster.servers, *cluster.clients)]
    rng, hands = seeded(seed, "nemesis"), seeded(seed, "transfers")
    prone = [rng.choice(cluster.masters), rng.choice(cluster.tservers)] if swarm.prone else []

    async def transfer() -> None:
        cluster.transfer(hands)

    clocks = FarClocks(cluster, seeded(seed, "far clocks"), swarm.far_length_s)
    losses = ClusterLosses(cluster, seeded(seed, "losses"))

    async def loss() -> None:
        await nemesis.only(losses.fault)

    extra = [(swarm.transfer_s, transfer), (swarm.far_s, clocks.fault), (swarm.loss_s, loss)]
    nemesis = Nemesis(
        cluster.network, cluster.servers, names, swarm, rng, cluster.leader, prone, extra
    )
    nemesis.start()
    watching = loop.create_task(clocks.watch())
    await loop.delay(seconds * 1e6)
    await nemesis.heal()
    ledger.stopped = True
    await _finish(cluster, ledger, writing, core)
    away = losses.away.union(*map(cluster.uuids, prone))
    what = "all is whole after the faults"
    await sound(cluster, cluster.groups(), what, SOUND_S, away, VOTERS)
    if watching.done():
        watching.result()
    watching.cancel()
    checks = cluster.checks()
    checks["snapshots read again"] = ledger.scans
    checks["operations linearized"] = sum(len(ops) for ops in cluster.history.ops.values())
    return Outcome(
        loop.trace, cluster.history, loop.events, loop.time(), cluster.terms(),
        len(cluster.workers), checks,
    )  # fmt: skip


async def _finish(
    cluster: SimCluster, ledger: Ledger, writing: asyncio.Task[None], core: ClientCore
) -> None:
    await writing
    await cluster.finish()
    await cluster.run(cluster.clients[0], ledger.finish)
    tables = await cluster.run(cluster.clients[0], core.tables)
    assert [t.name for t in tables] == ["ledger", "t"], tables  # type: ignore[attr-defined]


def run_cluster(
    seed: int,
    swarm: Swarm,
    *,
    seconds: float = 20,
    options: Options = OPTIONS,
    recorder: Recorder | None = None,
) -> Outcome:
    """Run one seed on three masters and three tablet servers."""
    return run(
        lambda loop: _scenario(loop, seed, swarm, seconds, options),
        max_events=most_events(seconds),
        recorder=recorder,
    )
