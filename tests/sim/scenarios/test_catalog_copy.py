"""A master's catalog copied into the directory of one that does not run, by calls that masters answer."""

import pytest

from nyala.common.errors import NyalaError
from nyala.common.ids import SYS_CATALOG
from nyala.datadir import instance
from nyala.env.env import Env
from nyala.offline.copy import StoppedServer, copy_to_directory
from nyala.replica.copy.protocol import CopyProgress
from nyala.tablet.tablet import Tablet
from tests.sim.systems.cluster import OPTIONS, SimCluster
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.process import SimProcess

HERE = "/copied"


async def copy(env: Env, address: str) -> CopyProgress:
    return await copy_to_directory(
        StoppedServer(env, OPTIONS, HERE, "master"), SYS_CATALOG, address
    )


async def tools(cluster: SimCluster) -> SimProcess:
    """A machine with an empty disk."""
    cluster.client()
    return cluster.clients[-1]


@pytest.mark.row("S2.7", "S2.10", "S2.8")
def test_master_catalog_copy_is_repeatable_after_crash():
    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop, 1)
        core = await cluster.start()
        await cluster.create_table(core, "kept")
        leader = cluster.leader_master()
        assert leader is not None
        machine = await tools(cluster)
        for operations in (3, 9, 20):
            machine.disk.die_after(operations)
            task = machine.run(copy, machine.env, leader.address)
            await cluster.until(
                lambda: not machine.alive, "the process crashes in a file operation"
            )
            task.cancel()
            machine.power_cut()
            files = machine.disk.mount()
            begun = files.exists(f"{HERE}/instance")
            assert not begun or not found(files).initialised, (
                "an incomplete copy counts as a catalog"
            )
            machine.open()
        progress = await machine.run(copy, machine.env, leader.address)
        assert progress.last.index > 0
        assert machine.env is not None
        whole = found(machine.env.files)
        assert whole.initialised
        assert whole.cluster_id == leader.server.cluster_id
        tablet = Tablet.open(machine.env.files, f"{HERE}/data/{SYS_CATALOG}")
        assert tablet.flush_point.op.index <= progress.last.index
        with pytest.raises(NyalaError):
            await machine.run(copy, machine.env, cluster.tservers[0].address)

    run(main)


def found(files: object) -> instance.Instance:
    return instance.decode(files.read(f"{HERE}/instance"), "instance")  # type: ignore[attr-defined]
