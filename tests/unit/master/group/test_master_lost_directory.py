"""A master whose directory was lost: it waits, is replaced by commands, and takes part again."""

import pytest

from nyala.common.errors import Forbidden
from nyala.master.config import MasterConfig
from nyala.master.server import Master
from tests.sim.systems.cluster import OPTIONS
from tests.unit.cli.support.cli_masters import leading, with_scenario


def emptied(scenario, lost):
    """Start a machine with an empty disk at the addresses of one that is dead."""
    cluster = scenario.cluster
    masters = tuple(m.address for m in cluster.masters)
    made = cluster.process(f"master-{len(cluster.masters)}")
    made.address, made.peer_address = lost.address, lost.peer_address
    config = MasterConfig(
        "/data", made.address, made.peer_address, master_addresses=masters, options=OPTIONS
    )
    made.program = lambda env, transport: Master(env, config, transport)
    cluster.masters.append(made)
    cluster.names[made.name] = made
    made.start()
    return made


@pytest.mark.row("S0.85")
def test_master_with_new_directory_at_old_address_is_refused_until_added():
    async def work(scenario):
        cluster = scenario.cluster
        lost = next(m for m in cluster.masters if m is not cluster.leader_master())
        stays = [m.address for m in cluster.masters if m is not lost]
        lost.kill()
        made = emptied(scenario, lost)
        await scenario.until(
            lambda: made.server and made.server.failure,
            "the new process is not a member of the group",
        )
        assert isinstance(made.server.failure, Forbidden)
        await scenario.do("remove", lost.address, known=stays)
        _, voters = await scenario.do("add", made.address, known=stays)
        assert voters == sorted([*stays, made.address])
        await scenario.until(lambda: leading(made), "the master takes part in the group")
        assert made.server.failure is None, "the replaced master reports no problem"

    with_scenario(work, masters=3)
