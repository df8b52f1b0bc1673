"""Tablet servers that return at other addresses: found by the server list, without membership changes."""

import asyncio

import pytest

from nyala.tserver.config import TabletServerConfig
from nyala.tserver.server import TabletServer
from tests.sim.systems.cluster import OPTIONS, SimCluster
from tests.sim.world.loop import run
from tests.unit.tserver.support import tablet_group
from tests.unit.tserver.support.tablet_group import Group, started

both_kinds = tablet_group.both_kinds


def move(cluster, process):
    """Kill a server, and start it with its directory at other ports."""
    process.kill()
    process.address, process.peer_address = f"{process.name}:7051", f"{process.name}:9051"
    masters = tuple(m.address for m in cluster.masters)
    config = TabletServerConfig(
        "/data",
        process.address,
        process.peer_address,
        master_addresses=masters,
        options=OPTIONS,
    )
    process.program = lambda env, transport: TabletServer(env, config, transport)
    return process.restart()


@pytest.mark.row("W6")
@pytest.mark.usefixtures("both_kinds")
def test_group_recovers_when_majority_restarts_at_new_addresses():
    async def main(loop):
        cluster, core, tablet = await started(SimCluster(loop, 5))
        group = Group(cluster, core, tablet)
        if tablet_group.kind == "table":
            await cluster.add_workers(1, pause_us=200_000)
        stays = group.holders()[1]
        config = group.status().committed_config
        await asyncio.gather(*(move(cluster, p) for p in cluster.tservers if p is not stays))
        await cluster.until(lambda: cluster.leader_of(tablet), "somebody leads")
        await cluster.finish()

        def whole():
            status = group.status()
            return len(status.peers) == 2 and all(
                p.match == status.last.index for p in status.peers
            )

        await cluster.until(whole, "every replica has all entries")
        assert group.status().committed_config == config, "no member was replaced"

    run(main, max_time_s=600)
