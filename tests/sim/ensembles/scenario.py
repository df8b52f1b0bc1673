"""One run of one seed of an ensemble: work under faults, heal, check."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.sim.ensembles.commits import CommitOrder
from tests.sim.ensembles.ensemble import SimulatedEnsemble
from tests.sim.ensembles.plan import EnsembleFaults
from tests.sim.ensembles.settle import settle
from tests.sim.faults.nemesis import Nemesis
from tests.sim.faults.plan import count
from tests.sim.journals.host import HOSTS
from tests.sim.journals.order import OrderWatch
from tests.sim.runs.core_run import most_events
from tests.sim.systems.core_cluster import CoreCluster
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.trace import Recorder, Trace

LEAST_CHANGES_PER_S = 1
"""Acknowledged changes in a second under faults, of a run whose time counts."""


@dataclass(slots=True)
class EnsembleOutcome:
    """Result of one run.

    Attributes:
        trace: its events, counted and hashed.
        done: answers to clients by kind, commits by kind.
        acknowledged: number of acknowledged changes.
        faults: by kind.
        checks: number of checks by kind.
        seconds: virtual time under faults.
    """

    trace: Trace
    done: Counter[str]
    acknowledged: int
    faults: Counter[str]
    checks: Counter[str]
    seconds: float

    @property
    def counted_s(self) -> float:
        """Simulated seconds that count: under faults, with enough acknowledged changes."""
        enough = self.acknowledged >= LEAST_CHANGES_PER_S * self.seconds and self.faults
        return self.seconds if enough else 0.0


def _nemeses(ensemble: SimulatedEnsemble, faults: EnsembleFaults) -> list[Nemesis]:
    cluster, points = ensemble.cluster, ensemble.points
    everyone = (*cluster.servers, *ensemble.coordinators, *ensemble.servers, *cluster.clients)
    names = [p.name for p in everyone]

    async def point() -> None:
        await points.strike(faults.coordinators.down_s, faults.coordinators.pause_length_s)

    return [
        Nemesis(cluster.network, cluster.servers, names, faults.journal,
                seeded(cluster.seed, "nemesis"), cluster.leader),
        Nemesis(cluster.network, ensemble.coordinators, names, faults.coordinators,
                seeded(cluster.seed, "coordinators"), ensemble.leader,
                extra=[(faults.point_s, point)]),
        Nemesis(cluster.network, ensemble.servers, names, faults.servers,
                seeded(cluster.seed, "members")),
    ]  # fmt: skip


@contextmanager
def started(
    loop: SimLoop, seed: int, servers: int
) -> Iterator[tuple[SimulatedEnsemble, OrderWatch]]:
    """Start an ensemble on a journal, both checked after each step.

    Args:
        loop: virtual time.
        seed: of everything drawn.
        servers: number of servers of the ensemble.
    """
    cluster = CoreCluster(loop, seed, 3, HOSTS[False, False])
    cluster.network.doubles_calls = False  # an ensemble does not recognise a repeated request
    ensemble = SimulatedEnsemble(cluster, servers)
    watch = OrderWatch(lambda info: CommitOrder(info, ensemble.log))
    look = cluster.look

    def all_looks() -> None:
        look()
        watch.look()
        ensemble.look()

    loop.after_step = all_looks
    with watch.installed():
        for server in cluster.servers:
            server.start()
        ensemble.start()
        yield ensemble, watch


async def _scenario(
    loop: SimLoop, seed: int, faults: EnsembleFaults, seconds: float
) -> EnsembleOutcome:
    with started(loop, seed, faults.members) as (ensemble, watch):
        nemeses = _nemeses(ensemble, faults)
        for one in nemeses:
            one.start()
        await loop.delay(seconds * 1e6)
        acknowledged = ensemble.history.acknowledged
        for one in nemeses:
            await one.heal()
        await settle(ensemble)
    done = ensemble.history.done + ensemble.model.counts
    checks = ensemble.checks + watch.checks
    struck = Counter({f"{k} at a point": n for k, n in ensemble.points.struck.items()})
    hits = count(loop.trace) + struck
    return EnsembleOutcome(loop.trace, done, acknowledged, hits, checks, seconds)


def run_ensemble(
    seed: int, faults: EnsembleFaults, seconds: float, recorder: Recorder | None = None
) -> EnsembleOutcome:
    """Run one seed; raise a violation.

    Args:
        seed: of everything drawn.
        faults: the mixture.
        seconds: virtual time under faults.
        recorder: receives every event.
    """
    return run(
        lambda loop: _scenario(loop, seed, faults, seconds),
        max_events=most_events(2 * seconds + 200),
        recorder=recorder,
    )
