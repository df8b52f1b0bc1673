"""Look-ups under read leases, with clocks of all rates that are allowed, while leaders change in every way.

Histories are checked for linearizability, and at each election no earlier leader may have a lease.
"""

import pytest

from nyala.tserver import point_reads
from tests.enough import enough
from tests.sim.runs.scenario import ScenarioCluster, play
from tests.sim.systems.cluster import SimCluster
from tests.sim.systems.replicas import nodes_of
from tests.sim.world.loop import seeded
from tests.sim.world.process import SimProcess

RATE_PPM = 100_000
TURNS = 16


def exited(running: ScenarioCluster, leader: SimProcess) -> None:
    """Make the other servers assume that a leader's process has exited."""
    for server in running.cluster.tservers:
        if server is leader or not server.alive:
            continue
        for group, node in nodes_of(server):
            if group == running.tablet and node.leader is not None:
                assert server.incarnation is not None
                server.incarnation.inside(node.peer_exited, node.leader)


class Events:
    """Events of one seed, each of which may end a leadership.

    Args:
        running: the cluster.
        seed: draws what happens.
    """

    def __init__(self, running: ScenarioCluster, seed: int) -> None:
        self._running = running
        self._rng = seeded(seed, "leases")

    async def play(self) -> None:
        """Let events happen, under the load of the workers."""
        running, rng = self._running, self._rng
        kinds = (self._isolate, self._pause, self._restart_follower, self._transfer)
        for _ in range(TURNS):
            await rng.choice(kinds)(await running.leader())
            await running.acknowledged(rng.randrange(1, 30), timeout_s=60)

    async def _isolate(self, leader: SimProcess) -> None:
        running, rng = self._running, self._rng
        others = [s.name for s in running.cluster.servers if s is not leader]
        running.network.partition([leader.name], others)
        if rng.random() < 0.7:
            exited(running, leader)
        await running.seconds(rng.uniform(0.1, 1.5))
        running.network.heal()

    async def _pause(self, leader: SimProcess) -> None:
        running, rng = self._running, self._rng
        leader.pause()
        if rng.random() < 0.5:
            exited(running, leader)
        await running.seconds(rng.uniform(0.05, 1.5))
        leader.resume()

    async def _restart_follower(self, leader: SimProcess) -> None:
        running, rng = self._running, self._rng
        follower = rng.choice([s for s in running.cluster.tservers if s is not leader])
        follower.kill(power_cut=rng.random() < 0.5)
        follower.start()
        others = [s.name for s in running.cluster.servers if s is not leader]
        running.network.partition([leader.name], others)
        exited(running, leader)
        await running.seconds(rng.uniform(0.1, 1.5))
        running.network.heal()

    async def _transfer(self, leader: SimProcess) -> None:
        running, rng = self._running, self._rng
        running.cluster.transfer(rng)
        if rng.random() < 0.5:
            others = [s.name for s in running.cluster.servers if s is not leader]
            running.network.cut(others, [leader.name])
        await running.seconds(rng.uniform(0.0, 0.5))
        running.network.heal()


def _run(seed: int, compute_us: float) -> None:
    def prepare(cluster: SimCluster) -> None:
        rng = seeded(seed, "rates")
        for server in cluster.servers:
            server.clock.drift_ppm = rng.choice([-RATE_PPM, 0, RATE_PPM])
            server.delays.compute_us = compute_us

    cluster = play(lambda running: Events(running, seed).play(), seed, workers=6, prepare=prepare)
    print("elections", cluster.leases.elected, "acknowledged", cluster.history.acknowledged)
    enough(cluster.leases.elected > TURNS // 2, f"{cluster.leases.elected} elections")


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 5))
def test_look_ups_are_linearizable_with_rates_of_clocks_ten_per_cent_off(seed: int):
    _run(seed, compute_us=500)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(11, 15))
def test_look_ups_are_linearizable_with_stops_between_check_and_read(
    seed: int, monkeypatch: pytest.MonkeyPatch
):
    """Rows are read in a lane, long after the lease was checked; processes are stopped in between."""
    monkeypatch.setattr(point_reads, "BRIEF_REQUESTS", 1 << 60)
    _run(seed, compute_us=40_000)
