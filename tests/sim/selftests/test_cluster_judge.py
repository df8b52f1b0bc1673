"""Checks of a whole cluster's losses: replicas that may stay FAILED, also after an interrupted loss."""

import asyncio
import random
from typing import Any

import pytest

from tests.sim.checkers.soundness import sound
from tests.sim.faults.cluster_losses import ClusterLosses
from tests.sim.systems.cluster import SimCluster
from tests.sim.systems.replicas import hosts_of
from tests.sim.world.loop import SimLoop, run


class FirstMasterLosesItsLog(random.Random):
    """Draws that let the first master lose its log."""

    def random(self) -> float:
        return 0.0

    def choice(self, found: Any) -> Any:
        return "log gone" if "log gone" in found else found[0]


def test_only_master_with_lost_log_may_stay_failed_when_faults_end() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop, 3)
        await cluster.start()
        losses = ClusterLosses(cluster, FirstMasterLosesItsLog())
        lost, other, _ = cluster.masters
        assert losses.away == set()
        fault = loop.create_task(losses.fault())
        await cluster.until(lambda: loop.trace.counts["disk_loss"], "a master has lost its log")
        fault.cancel()  # as `Nemesis.heal` does
        await asyncio.gather(fault, return_exceptions=True)
        lost.start()
        await cluster.until(lambda: hosts_of(lost), "the master opens its replica")
        await sound(
            cluster, cluster.groups(), "all is whole but for the lost master", 30, losses.away
        )
        (host,) = hosts_of(lost)
        assert [r.state.value for r in host.all()] == ["FAILED"]
        with pytest.raises(AssertionError, match=r"takes no part$"):
            await sound(cluster, cluster.groups(), "all is whole", 5)
        other.kill()
        with pytest.raises(AssertionError, match=r"no leader|takes no part"):
            await sound(cluster, cluster.groups(), "two masters", 5, losses.away)

    run(main)
