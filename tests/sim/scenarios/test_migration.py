"""Migration from one master to three by one command that is killed after each order and repeated."""

import pytest

from nyala.common.errors import InvalidArgument, NyalaError
from nyala.operate.group_view import GroupView
from nyala.operate.master_group import MasterGroup
from nyala.operate.migration import migrate
from tests.sim.faults.master_changes import addresses, new_master, operator
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import SimLoop, run
from tests.unit.cli.support.member_commands import Killed, Wire, die


@pytest.mark.full
@pytest.mark.row("S2.25", "S2.26", "S2.27")
def test_single_master_migration_to_three_survives_command_crash_after_each_order() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = SimCluster(loop, 3, masters=1)
        await cluster.create_table(await cluster.start(), "kept")
        await cluster.add_workers(1, "kept")
        (first,) = cluster.masters
        new = [new_master(cluster, first.address) for _ in range(2)]
        named = [m.address for m in new]

        async def begin(**wire: object) -> MasterGroup:
            made = operator(cluster, first.address, wire=lambda rpc: Wire(rpc, **wire))
            await cluster.run(cluster.clients[-1], migrate, made, named)
            return made

        new[0].start()
        with pytest.raises(NyalaError, match="no master answers at master-2"):
            await begin()
        new[1].start()
        with pytest.raises(InvalidArgument, match=r"2 masters, .* choose an odd number"):
            await cluster.run(
                cluster.clients[-1], migrate, operator(cluster, first.address), named[:1]
            )
        assert addresses(await looked(cluster)) == [first.address], (
            "the refused command changed nothing"
        )
        killed = 0
        while True:
            try:
                whole = await begin(at=1, after=die)
            except Killed:
                killed += 1
                continue
            break
        assert killed >= 4, "two masters were added and copied"
        assert not any("copy" in step or "add" in step for step in whole.done)
        assert addresses(await looked(cluster)) == sorted([first.address, *named])
        assert (await begin()).done == []
        for paused in cluster.masters:  # an old client knows only the first master
            core = cluster.client()
            paused.pause()
            if paused is first:
                incarnation = cluster.clients[-1].incarnation
                assert incarnation is not None
                core = incarnation.inside(type(core), core.env, named, core.options)
            made = await cluster.create_table(core, f"without-{paused.name}")
            assert made.tablets
            paused.resume()
        await cluster.finish()

    run(main, max_time_s=600)


async def looked(cluster: SimCluster) -> GroupView:
    group = operator(cluster, cluster.masters[0].address)
    found = await cluster.run(cluster.clients[-1], group.view)
    assert isinstance(found, GroupView)
    return found
