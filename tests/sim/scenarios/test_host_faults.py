"""Directed faults of the replica engine on its simulated disk."""

import functools
import random

import pytest

from nyala.common.errors import Corrupt
from nyala.env.clock import HybridClock
from nyala.raft.ready import Ready
from nyala.replica.tombstone import Tombstone
from tests.sim.systems.core_cluster import CoreCluster, host
from tests.sim.systems.stores import GROUP
from tests.sim.world.files import SimDisk
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.tasks import SimClock


@pytest.mark.row("S4.2")
def test_page_cache_data_of_failed_sync_is_durable_only_after_rewrite():
    """The kernel counts such bytes as clean; a restart reads them, and a later sync does not write them."""

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


def test_flipped_bit_in_clock_ceiling_is_detected():
    """With a ceiling that is too low, a restart could give timestamps that were used or closed before."""

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


async def elected_by_a_tombstone(loop: SimLoop) -> None:
    """One of three replicas is deleted and continues to vote; leaders crash, also while it saves its vote."""
    cluster = CoreCluster(loop, 3, 3, host)
    for server in cluster.servers:
        server.start()
    cluster.add_workers(5)
    await cluster.until(lambda: cluster.leader() is not None, "a leader")
    deleted = next(s for s in cluster.servers if s is not cluster.leader())
    await deleted.run(deleted.server.host.delete_replica, GROUP)
    votes = cluster.sent_messages.checks["tombstones' votes"]
    for half_saved in (False, True, False, False):
        old = cluster.leader()
        assert old is not None
        if half_saved:
            deleted.disk.die_when = lambda kind, path: "/superblock/" in path
        old.kill()
        if half_saved:
            await cluster.until(
                lambda: not deleted.alive, "the server of the tombstone crashes during a vote"
            )
            deleted.power_cut()
            deleted.start()
        await cluster.until(functools.partial(cluster.led_by_another, old), "another leader")
        old.start()
        await loop.delay(1_000_000)
    assert cluster.sent_messages.checks["tombstones' votes"] >= votes + 4
    await cluster.progress()


def test_deleted_replica_vote_is_in_superblock_before_it_is_sent():
    run(elected_by_a_tombstone)


def test_tombstone_vote_before_superblock_write_is_detected(
    monkeypatch: pytest.MonkeyPatch,
):
    async def perform(self: Tombstone, ready: Ready) -> None:
        self._node.durable(ready.point)
        for outgoing in ready.send:
            self._context.send(self.config, self.superblock.group, outgoing.message)
        self._context.schedule(self.superblock.group)

    monkeypatch.setattr(Tombstone, "_perform", perform)
    with pytest.raises(AssertionError, match="durable on its disk is term"):
        run(elected_by_a_tombstone)
