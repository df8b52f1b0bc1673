"""Masters added to and removed from a simulated cluster while it runs, by the commands' own coroutines."""

from dataclasses import replace
from typing import Any

from nyala.cli.groups import Group
from nyala.cli.master_group import MasterGroup
from nyala.client.core import ClientOptions, Core
from nyala.master.config import MasterConfig
from nyala.master.server import Master
from tests.sim.cluster import SimCluster
from tests.sim.process import SimProcess

OPTIONS = ClientOptions(timeout_ms=15_000)


def new_master(cluster: SimCluster, *known: str) -> SimProcess:
    """Give the cluster a machine for one more master; start it to be added.

    Args:
        cluster: the cluster.
        known: addresses of masters that it is started with, beside its own.
    """
    made = cluster.process(f"master-{len(cluster.masters)}")
    config = MasterConfig(
        "/data",
        made.address,
        made.peer_address,
        master_addresses=(*known, made.address),
        options=cluster.options,
    )
    made.program = lambda env, transport: Master(env, config, transport)
    cluster.masters.append(made)
    cluster.names[made.name] = made
    return made


def operator(
    cluster: SimCluster, *known: str, wire: Any = None, patience_ms: int = 20_000
) -> MasterGroup:
    """Return a person's command on a machine of its own, which knows some addresses of masters."""
    cluster.client()
    process = cluster.clients[-1]
    assert process.env is not None
    assert process.life is not None
    env = process.env if wire is None else replace(process.env, rpc=wire(process.env.rpc))
    core = process.life.inside(Core, env, list(known), OPTIONS)
    return MasterGroup(core, patience_ms=patience_ms)


async def change(cluster: SimCluster, group: MasterGroup, verb: str, address: str) -> Group:
    """Carry out `add` or `remove` as the last client."""
    found = await cluster.run(cluster.clients[-1], getattr(group, verb), address)
    assert isinstance(found, Group)
    return found


def addresses(group: Group) -> list[str]:
    """The masters of a committed configuration that vote."""
    assert group.config is not None
    return sorted(m.address for m in group.config.members if m.voter)
