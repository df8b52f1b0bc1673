"""A removed master: it redirects clients while its process runs, and leads again after it was added again."""

import msgspec
import pytest

from nyala.common.errors import NotFound, Unavailable
from nyala.common.ids import SYS_CATALOG
from nyala.master.catalog.sys_catalog import not_found_is_unavailable
from nyala.master.config import MasterConfig
from nyala.master.server import Master
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import OPTIONS
from tests.unit.cli.support.cli_masters import leading, with_scenario
from tests.unit.master.support.follower_reads import started, within
from tests.unit.master.support.master_cluster import others, with_masters


def listing():
    return pb.ListTablesRequest(staleness=within())


@pytest.mark.row("S0.85")
def test_deleted_catalog_is_not_reported_as_table_not_found():
    async def work(masters):
        leader, _ = await started(masters)
        follower = others(leader)[0]
        assert await masters.ask(follower, methods.LIST_TABLES, listing())
        await masters.master(follower).host.delete_replica(SYS_CATALOG)
        with pytest.raises(Unavailable, match="was removed from the masters"):
            await masters.ask(follower, methods.LIST_TABLES, listing())

    with_masters(work)


def test_removed_master_answer_is_independent_of_leader():
    with pytest.raises(Unavailable, match="use another"), not_found_is_unavailable():
        raise NotFound("the replica was deleted")


def seldom_looking(scenario):
    """Restart a follower that looks at its replica once in ten seconds; return it."""
    cluster = scenario.cluster
    chosen = next(m for m in cluster.masters if m is not cluster.leader_master())
    options = msgspec.structs.replace(OPTIONS, server_heartbeat_ms=10_000)
    addresses = tuple(m.address for m in cluster.masters)
    config = MasterConfig(
        "/data", chosen.address, chosen.peer_address, master_addresses=addresses, options=options
    )
    chosen.program = lambda env, transport: Master(env, config, transport)
    chosen.kill()
    chosen.start()
    return chosen


async def transfer(scenario, successor):
    """Ask the leader master to hand its leadership to another one."""
    old = scenario.cluster.leader_master()
    request = pb.LeaderStepDownRequest(
        destination_uuid=old.server.uuid, cluster_id=old.server.cluster_id, tablet_id=SYS_CATALOG,
        successor=successor.server.uuid, timeout_ms=5_000,
    )  # fmt: skip
    await scenario.ask(old.address, methods.LEADER_STEP_DOWN, request)


@pytest.mark.row("S2.15")
def test_master_removed_and_added_again_between_two_looks_at_its_replica_leads():
    """Its leadership follows the replica that it has now, not the one that was deleted."""

    async def work(scenario):
        cluster = scenario.cluster
        chosen = seldom_looking(scenario)
        await scenario.until(lambda: leading(chosen), "the master is a member")
        await cluster.loop.delay(2_000_000)
        before = leading(chosen)
        await scenario.do("remove", chosen.address)
        await scenario.do("add", chosen.address)
        assert leading(chosen) is before, "it has not looked at its replica meanwhile"
        await transfer(scenario, chosen)
        await scenario.until(
            lambda: leading(chosen) and leading(chosen).current(), "the master leads"
        )
        await cluster.create_table(scenario.core, "later")

    with_scenario(work, masters=3)
