"""Directed harm to the replica engine on its simulated disk."""

import random

import pytest

from nyala.common.errors import Corrupt
from nyala.env.clock import HybridClock
from tests.sim.core_cluster import CoreCluster, host
from tests.sim.files import SimDisk
from tests.sim.loop import SimLoop, run
from tests.sim.tasks import SimClock


@pytest.mark.row("S4.2")
def test_what_a_failed_sync_left_in_the_page_cache_counts_only_when_it_is_written_again():
    """The kernel takes such bytes for clean; a restart reads them, and a later sync does not write them."""

    async def main(loop: SimLoop) -> None:
        cluster = CoreCluster(loop, 1, 3, host)
        for server in cluster.servers:
            server.start()
        cluster.add_workers(5)
        await cluster.until(lambda: cluster.leader() is not None, "a leader")
        victim = cluster.servers[0]
        for _ in range(3):
            await loop.delay(500_000)
            victim.disk.faults.sync_eio_rate = 1.0
            await cluster.until(lambda: victim.server.failed is not None, "a failed replica")
            victim.disk.faults.sync_eio_rate = 0.0
            victim.kill(power_cut=False)
            victim.start()
            await loop.delay(1_000_000)
            victim.kill(power_cut=True)
            victim.start()
            await loop.delay(1_000_000)
        await cluster.progress()

    run(main)


def test_a_wrong_bit_anywhere_in_the_clock_s_ceiling_is_noticed():
    """A ceiling that is too low would let a restart stamp again what was stamped or promised before."""

    async def main(loop: SimLoop) -> None:
        disk, clock = SimDisk(random.Random(1)), SimClock(loop)
        HybridClock(clock, disk.mount(), "/ceiling").now()
        good = disk.mount().read("/ceiling")
        assert HybridClock(clock, disk.mount(), "/ceiling").seen > 0
        for offset in range(len(good) - 1):
            for bit in range(8):
                bad = bytearray(good)
                bad[offset] ^= 1 << bit
                disk.mount().write_atomic("/ceiling", bad)
                with pytest.raises(Corrupt, match="checksum"):
                    HybridClock(clock, disk.mount(), "/ceiling")

    run(main)
