"""Damaged files of tables and journals: the replica is FAILED, and is replaced on its server."""

from typing import Any

import pytest

from nyala.machines import registry
from tests.sim.systems.cluster import REPAIRING, SimCluster
from tests.sim.world.loop import run
from tests.sim.world.process import SimProcess
from tests.unit.cli.support.member_commands import Scenario
from tests.unit.tserver.support import tablet_group
from tests.unit.tserver.support.tablet_group import refused, started

both_kinds = tablet_group.both_kinds
pytestmark = pytest.mark.usefixtures("both_kinds")

MANIFESTS = [kind.file_name for kind in registry.KINDS]


class Damaged(Scenario):
    """A tablet of three servers, and the files of its replicas."""

    async def flush(self, number: int) -> None:
        """Add a row or an entry, and write it to files of all replicas."""
        await self.add(number)
        last = self.status().last
        for process in self.holders():

            def applied(process: SimProcess = process) -> bool:
                return bool(self.status(process).applied >= last)

            await self.cluster.until(applied, "the replica has applied it")
            await process.run(process.server.host.find(self.tablet).flush)

    def files(self, process: Any, *, manifest: bool) -> list[str]:
        """Return the paths of a replica's manifest, or of its data files, oldest first."""
        folder = f"/data/data/{self.tablet}"
        names = sorted(process.disk.names.seen[folder])
        return [f"{folder}/{name}" for name in names if (name in MANIFESTS) == manifest]


def with_damage(work: Any) -> None:
    async def main(loop: Any) -> None:
        group = Damaged(*await started(SimCluster(loop, 5, masters=1, options=REPAIRING)))
        victim = group.holders()[1]
        await group.flush(1)
        await group.flush(2)
        await work(group, victim)
        replica = victim.server.host.find(group.tablet)
        assert "/data/data/" in str(replica.error)
        await group.cluster.until(lambda: group.state(victim) == "RUNNING", "it is replaced", 120)
        await group.flush(3)
        await group.verify()
        assert await group.added() == [1, 2, 3]

    run(main, max_time_s=600)


@pytest.mark.parametrize("manifest", [True, False])
def test_replica_whose_file_is_cut_short_fails_at_start_and_is_replaced(manifest: bool) -> None:
    async def work(group: Damaged, victim: Any) -> None:
        path = group.files(victim, manifest=manifest)[0]
        victim.kill()
        del victim.disk.names.get(path).content[40:]
        victim.disk.lost_data = True
        await victim.start()
        assert group.state(victim) == "FAILED"

    with_damage(work)


def test_replica_in_whose_file_a_merge_finds_damage_fails_and_is_replaced() -> None:
    async def work(group: Damaged, victim: Any) -> None:
        if (
            tablet_group.kind == "table"
        ):  # it maps its files when it is opened, and verifies blocks later
            victim.kill()
        for path in group.files(victim, manifest=False):
            victim.disk.flip_bit(path, len(victim.disk.names.get(path).content) // 3)
        if not victim.alive:
            await victim.start()
        replica = victim.server.host.find(group.tablet)

        async def merge() -> None:
            stamp = replica.status().applied_stamp
            await replica.maintain(lambda: replica.machine.prepare_compaction(stamp, force=True))

        await refused(victim.run(merge))
        assert group.state(victim) == "FAILED"

    with_damage(work)
