"""Real masters with real tablet servers on virtual time: tables created and dropped, servers registered."""

import pytest

from nyala.client.journal.core import JournalCore
from nyala.common.errors import AlreadyPresent, NotFound
from nyala.machines import registry
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import run
from tests.unit.machines.support.kinds import KINDS


def with_cluster(work, seed=11):
    async def main(loop):
        cluster = SimCluster(loop, seed)
        core = await cluster.start()
        result = await work(cluster, core)
        cluster.look()
        return result

    return run(main, max_time_s=300)


def states(cluster):
    """States of the replicas on each tablet server."""
    return [sorted(str(r.state) for r in p.server.host.all()) for p in cluster.tservers]


async def create(cluster, core, kind):
    """Create a table or a journal with the name `t`."""
    if kind is registry.TABLE:
        await cluster.create_table(core, "t")
    else:
        await asked(cluster, JournalCore(core).create, "t", 3, 1 << 30)


async def asked(cluster, fn, *args):
    return await cluster.run(cluster.clients[-1], fn, *args)


@pytest.mark.row("S0.50")
def test_created_and_dropped_table_leaves_servers_registered():
    async def work(cluster, core):
        first = await cluster.create_table(core, "t", tablets=4)
        assert (await asked(cluster, core.describe, "t")).ready
        assert states(cluster) == [["RUNNING"] * 4] * 3
        await asked(cluster, core.ddl.drop_table, "t")
        await cluster.loop.delay(8_000_000)
        assert states(cluster) == [[]] * 3, "no tombstone stays"
        servers = (await asked(cluster, core.servers)).servers
        assert [s.alive for s in servers] == [True] * 6
        with pytest.raises(NotFound):
            await asked(cluster, core.open_table, "t")
        second = await cluster.create_table(core, "t", tablets=2)
        with pytest.raises(AlreadyPresent):
            await cluster.create_table(core, "t")
        return first, second

    first, second = with_cluster(work)
    assert first != second


@KINDS
def test_drop_order_reaches_returning_server_under_new_leader(kind):
    async def work(cluster, core):
        await create(cluster, core, kind)
        await cluster.loop.delay(2_000_000)
        cluster.tservers[0].kill()
        await asked(cluster, lambda: core.ddl.drop_table("t", kind=kind.number))
        leader = cluster.leader_master()
        assert leader is not None
        leader.kill()
        await cluster.loop.delay(3_000_000)
        cluster.tservers[0].restart()
        await cluster.loop.delay(4_000_000)
        return states(cluster)

    assert with_cluster(work) == [[]] * 3


@KINDS
def test_member_absent_at_creation_gets_its_replica_later(kind):
    """The server is down but still counts as live; its order is derived again when it is back."""

    async def work(cluster, core):
        cluster.tservers[2].kill()
        await create(cluster, core, kind)
        assert [len(p.server.host.all()) for p in cluster.tservers[:2]] == [1, 1]
        cluster.tservers[2].restart()
        await cluster.loop.delay(4_000_000)
        (replica,) = cluster.tservers[2].server.host.all()
        assert registry.kind_of_machine(replica.machine) is kind
        return states(cluster)

    assert with_cluster(work) == [["RUNNING"]] * 3
