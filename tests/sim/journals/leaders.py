"""Candidates for one log over a simulated journal: at most one acts at any time, and one is always found.

Servers of the journal and candidates crash, pause and are partitioned. Each leader sends requests that take
up to some seconds, to a server with a `Guard`.
"""

from collections import Counter

from nyala.client.journal.coroutines import JournalCoroutines
from nyala.common.errors import NyalaError, StaleEpoch
from nyala.recipes.candidate import LeaderCandidate
from nyala.recipes.guard import Guard
from nyala.recipes.records import ElectionSettings
from tests.sim.faults.nemesis import Nemesis
from tests.sim.faults.plan import Swarm
from tests.sim.journals.client import core_without_masters, opened_without_masters
from tests.sim.journals.host import HOSTS
from tests.sim.systems.core_cluster import CoreCluster
from tests.sim.systems.stores import GROUP
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.process import SimProcess
from tests.unit.client.support.journal_scenarios import append

LOG = "service"
TIMEOUT_MS, BACK_OFF_MS = 3_000, 4_500
CANDIDATES = 3
GROUP_S = 5.0
"""Time in which the healed group elects its own leader and answers, in seconds."""
FAULTS = Swarm(
    loss_rate=0.01, straggler_rate=0.01, straggler_ms=200, crash_s=15, partition_s=12,
    partition_length_s=3, pause_s=10, pause_length_s=2,
)  # fmt: skip


class Candidates:
    """Candidate processes, and the server that they send requests to.

    Attributes:
        done: number of events by kind.
        epochs: epochs of all leaders that acted, in order.
    """

    def __init__(self, loop: SimLoop, seed: int, cluster: CoreCluster) -> None:
        self.loop, self.cluster = loop, cluster
        self.rng = seeded(seed, "leaders")
        self.guard = Guard()
        self.done: Counter[str] = Counter()
        self.epochs: list[int] = []
        self.processes = [cluster.new_process() for _ in range(CANDIDATES)]
        self.running: dict[str, LeaderCandidate] = {}

    async def start(self, process: SimProcess) -> None:
        """Start a process, and its candidate."""
        core = core_without_masters(process.open())
        opened = opened_without_masters(GROUP, [s.address for s in self.cluster.servers])
        settings = ElectionSettings(LOG, process.name, "", TIMEOUT_MS, BACK_OFF_MS)

        async def on_lost(_: str) -> None:
            self.done["lost"] += 1

        made = LeaderCandidate(JournalCoroutines(core, opened), settings, on_lost)
        self.running[process.name] = made

        async def work() -> None:
            made.start()
            while True:
                await made.elected()
                await self._lead(made)

        process.run(work)

    async def _lead(self, candidate: LeaderCandidate) -> None:
        while (epoch := candidate.epoch) > 0:
            self.loop.call_later(self.rng.uniform(0, 3), self._request, epoch)
            try:
                await candidate.steps.step((), [append(LOG, b"%d" % epoch)])
                self.done["step"] += 1
            except NyalaError:
                self.done["refused step"] += 1
            await self.loop.delay(self.rng.uniform(0, 1.5e6))

    def _request(self, epoch: int) -> None:
        try:
            self.guard.check(epoch)
            self.done["request"] += 1
        except StaleEpoch:
            self.done["late request"] += 1

    def look(self) -> None:
        """Check that at most one acts."""
        acting = [c.epoch for c in self.running.values() if c.acts]
        assert len(acting) < 2, f"leaders of epochs {acting} act at {self.loop.time()}"
        if acting and acting != self.epochs[-1:]:
            assert acting > self.epochs[-1:], f"epoch {acting} after {self.epochs}"
            self.epochs += acting

    async def disturb(self) -> None:
        """Kill or pause the leader, or another candidate."""
        acting = [p for p in self.processes if self.running[p.name].acts]
        victim = self.rng.choice(acting or self.processes)
        if self.rng.random() < 0.5:
            self.done["kill"] += 1
            victim.kill(power_cut=False)
            del self.running[victim.name]
            self.running[victim.name] = _Nobody()  # type: ignore[assignment]
            await self.loop.delay(self.rng.uniform(0, 4e6))
            await self.start(victim)
        else:
            self.done["pause"] += 1
            victim.pause()
            await self.loop.delay(self.rng.uniform(0.5e6, 12e6))
            victim.resume()


class _Nobody:
    """Candidate of a process that does not run."""

    acts, epoch = False, 0


async def _scenario(loop: SimLoop, seed: int, seconds: float) -> Candidates:
    cluster = CoreCluster(loop, seed, 3, HOSTS[False, False])
    every = Candidates(loop, seed, cluster)
    look = cluster.look

    def all_looks() -> None:
        look()
        every.look()

    loop.after_step = all_looks
    for server in cluster.servers:
        server.start()
    for process in every.processes:
        await every.start(process)
    names = [s.name for s in (*cluster.servers, *cluster.clients)]
    nemesis = Nemesis(
        cluster.network, cluster.servers, names, FAULTS, seeded(seed, "nemesis"), cluster.leader
    )
    nemesis.start()
    while loop.time() < seconds:
        await loop.delay(every.rng.uniform(2e6, 20e6))
        await every.disturb()
    await nemesis.heal()
    await loop.delay(GROUP_S * 1e6)
    limit_s = (TIMEOUT_MS + BACK_OFF_MS) / 1000 + 0.5
    await cluster.until(lambda: any(c.acts for c in every.running.values()), "a leader", limit_s)
    await loop.delay(10e6)
    acting = next(p for p in every.processes if every.running[p.name].acts)
    acting.kill(power_cut=False)
    every.running[acting.name] = _Nobody()  # type: ignore[assignment]
    await cluster.until(
        lambda: any(c.acts for c in every.running.values()), "another leader", limit_s
    )
    return every


def run_leaders(seed: int, seconds: float) -> Candidates:
    """Run one seed; raise a violation.

    Args:
        seed: of everything drawn.
        seconds: virtual time under faults.
    """
    return run(lambda loop: _scenario(loop, seed, seconds), max_time_s=seconds + 200)
