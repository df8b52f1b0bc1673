"""Copies that wait to become a member: deletion by the leader master, and repair on their server."""

from typing import Any

import msgspec
import pytest

from nyala.common.errors import Unavailable
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import OPTIONS, REPAIRING, SimCluster
from tests.sim.world.loop import run
from tests.unit.tserver.support import tablet_group
from tests.unit.tserver.support.tablet_group import Group, refused, started

both_kinds = tablet_group.both_kinds
pytestmark = pytest.mark.usefixtures("both_kinds")

BY_HAND = msgspec.structs.replace(OPTIONS, repair="off")
MASTER, OPERATOR = "master", "operator"


def with_group(work: Any, options: Any) -> None:
    async def main(loop: Any) -> None:
        group = Group(*await started(SimCluster(loop, 5, tservers=4, options=options, masters=1)))
        await work(group)
        group.cluster.look()

    run(main, max_time_s=1200)


async def copied(group: Group, new: Any, by: str) -> None:
    """Copy the leader's replica to a server that is no member; return once the copy waits to become one."""
    copies, leader = new.server.host.copies, group.leader
    order = pb.StartCopyRequest(
        destination_uuid=group.uuid(new),
        tablet_id=group.tablet,
        source_uuid=group.uuid(leader),
        source_address=leader.address,
        cluster_id=group.cluster_id if by == OPERATOR else "",
        fence=group.fence(new) if by == MASTER else None,
    )
    await group.ask(new, methods.START_COPY, order)
    await group.cluster.until(
        lambda: [p.stage.value for p in copies.progress()] == ["WAITING"], "the copy waits"
    )


async def deleted(group: Group, server: Any) -> None:
    """Delete a replica as the leader master does: unless it has a newer configuration than the group."""
    at = group.status().committed_config.id
    order = pb.DeleteTabletRequest(
        destination_uuid=group.uuid(server),
        tablet_id=group.tablet,
        reason="test",
        fence=group.fence(server),
        compare_config=True,
        config_term=at.term,
        config_index=at.index,
    )
    await group.ask(server, methods.DELETE_TABLET, order)


def test_waiting_copy_of_master_is_deleted_and_can_be_repeated() -> None:
    async def work(group: Group) -> None:
        new = group.empty_servers()[0]
        copies = new.server.host.copies
        for _ in range(2):
            await copied(group, new, MASTER)
            assert group.state(new) == "CONFIGURING"
            await deleted(group, new)
            assert group.state(new) == "TOMBSTONED"
            await group.cluster.until(lambda: not copies.waiting(group.tablet), "the copy ends")

    with_group(work, BY_HAND)


@pytest.mark.parametrize("first", [MASTER, OPERATOR])
def test_waiting_copy_ordered_by_operator_is_not_deleted_by_master(first: str) -> None:
    async def work(group: Group) -> None:
        new = group.empty_servers()[0]
        for by in (first, OPERATOR, MASTER):
            await copied(group, new, by)
        assert isinstance(await refused(deleted(group, new)), Unavailable)
        assert group.state(new) == "CONFIGURING"

    with_group(work, BY_HAND)


def test_lost_replica_is_replaced_on_server_with_waiting_copy() -> None:
    async def work(group: Group) -> None:
        new, lost = group.empty_servers()[0], group.holders()[1]
        await copied(group, new, MASTER)
        lost.kill()

        def rebuilt() -> bool:
            voters = group.status().committed_config.voters
            return group.uuid(new) in voters and group.uuid(lost) not in voters

        await group.cluster.until(rebuilt, "the lost replica is replaced", 60)

    with_group(work, REPAIRING)
