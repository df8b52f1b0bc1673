"""A quiescent group of a table or a journal serves reads at followers, and wakes when its leader is lost."""

from typing import Any

import pytest

from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import run
from tests.unit.tserver.support import tablet_group
from tests.unit.tserver.support.tablet_group import Group, started

both_kinds = tablet_group.both_kinds
HOUR_MS = 3_600_000


@pytest.mark.usefixtures("both_kinds")
def test_quiescent_group_serves_reads_at_followers_and_replaces_a_lost_leader() -> None:
    async def main(loop: Any) -> None:
        group = Group(*await started(SimCluster(loop, 5, masters=1)))
        await group.add(1)

        def quiescent() -> bool:
            return all(group.status(p).quiesced for p in group.holders())

        await group.cluster.until(quiescent, "all replicas are quiescent", 60)
        at = group.status().last
        await loop.delay(10_000_000)
        assert quiescent()
        assert group.status().last == at
        lost, *followers = group.holders()
        lost.pause()
        assert await group.added(HOUR_MS) == [1]
        assert all(group.status(p).quiesced for p in followers), "the read has not woken the group"
        lost.kill()
        await group.add(2)
        assert await group.added() == [1, 2]
        await lost.start()
        await group.cluster.until(quiescent, "it is quiescent again", 60)
        assert {group.status(p).applied for p in group.holders()} == {group.status().last}

    run(main, max_time_s=600)
