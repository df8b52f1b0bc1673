"""One run of one seed on a whole cluster with journals and a table: definitions, moves, losses, faults."""

import msgspec

from tests.sim.faults.cluster_losses import ClusterLosses
from tests.sim.faults.far_clocks import FarClocks
from tests.sim.faults.nemesis import Nemesis
from tests.sim.faults.plan import Swarm
from tests.sim.journals.cluster_journals import ClusterJournals
from tests.sim.journals.definer import JournalDefiner
from tests.sim.journals.order import OrderWatch
from tests.sim.journals.outcome import JournalOutcome
from tests.sim.runs.core_run import most_events
from tests.sim.systems.cluster import REPAIRING, SimCluster
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.trace import Recorder

SETTINGS = msgspec.structs.replace(REPAIRING, flush_bytes=4 << 10, flush_log_bytes=8 << 10)
"""Options under which journals are flushed often."""


async def _scenario(
    loop: SimLoop, seed: int, swarm: Swarm, seconds: float, watch: OrderWatch
) -> JournalOutcome:
    cluster = SimCluster(loop, seed, tservers=4, options=SETTINGS)
    core = await cluster.start()
    journals = ClusterJournals(cluster)
    definer = JournalDefiner(journals)
    look = cluster.look

    def all_looks() -> None:
        look()
        watch.look()
        journals.count()

    loop.after_step = all_looks
    assert await definer.process.run(definer.create), "no journal"
    await cluster.create_table(core, "t")
    await cluster.add_workers(2, pause_us=300_000)
    journals.start()
    names = [p.name for p in (*cluster.servers, *cluster.clients)]
    hands = seeded(seed, "transfers")

    async def transfer() -> None:
        cluster.transfer(hands)

    clocks = FarClocks(cluster, seeded(seed, "far clocks"), swarm.far_length_s)
    losses = ClusterLosses(cluster, seeded(seed, "losses"))

    async def loss() -> None:
        await nemesis.only(losses.fault)

    extra = [(swarm.transfer_s, transfer), (swarm.far_s, clocks.fault), (swarm.loss_s, loss)]
    nemesis = Nemesis(
        cluster.network, cluster.servers, names, swarm, seeded(seed, "nemesis"), cluster.leader,
        (), extra,
    )  # fmt: skip
    nemesis.start()
    defining = None if swarm.loss_s else definer.process.run(definer.run)
    await loop.delay(seconds * 1e6)
    await nemesis.heal()
    definer.stopped = True
    if defining is not None:
        await defining
        await definer.process.run(definer.heal)
    await journals.finish(watch)
    await cluster.finish()
    cluster.look()
    return JournalOutcome(
        loop.trace, journals.all(), cluster.checks() + watch.checks, seconds, definer.done
    )


def run_journal_cluster(
    seed: int, swarm: Swarm, seconds: float, recorder: Recorder | None = None
) -> JournalOutcome:
    """Run one seed on three masters and four tablet servers; raise a violation.

    Args:
        seed: of everything drawn.
        swarm: the faults; with losses of disks there are no definitions and moves.
        seconds: virtual time under faults.
        recorder: receives every event.
    """
    watch = OrderWatch()
    with watch.installed():
        return run(
            lambda loop: _scenario(loop, seed, swarm, seconds, watch),
            max_events=most_events(2 * seconds + 400),
            recorder=recorder,
        )
