"""Deletions by a command, against the servers' handler: which configurations of a replica are superseded."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.admin.deletion import DeletionService
from nyala.common.errors import CasFailed
from nyala.common.ids import NO_OP, OpId, ServerUuid, TabletId
from nyala.operate.group_view import ClusterServer, GroupView, ReplicaView
from nyala.operate.member_rpcs import MemberRpcs
from nyala.raft.membership import Configuration, Member
from nyala.replica.status import State
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb

TABLET = "t" * 32
LEADER, REMOVED = (ClusterServer(ServerUuid(c * 32), f"{c}:1", f"{c}:2") for c in "lr")


def config(at: OpId, *servers: ClusterServer) -> Configuration:
    return Configuration(tuple(Member(s.uuid, s.peer_address, s.address) for s in servers), at)


def view(role: str, committed: Configuration, active: Configuration) -> ReplicaView:
    consensus = convert.consensus_to_proto(committed, 1, None)
    report = pb.TabletReport(tablet_id=TABLET, state="RUNNING", role=role, consensus=consensus)
    return ReplicaView(
        pb.TabletStatus(report=report, active=convert.consensus_to_proto(active, 1, None))
    )


class Server:
    """The server of the replica to delete.

    Attributes:
        deleted: tablets that were deleted.
    """

    def __init__(self, committed: Configuration, active: Configuration) -> None:
        self.deleted: list[TabletId] = []
        status = SimpleNamespace(committed_config=committed, config=active)
        replica = SimpleNamespace(state=State.RUNNING, group=TABLET, status=lambda: status)
        host: Any = SimpleNamespace(
            find=lambda _: replica,
            copies=SimpleNamespace(protected=lambda _: False),
            delete_replica=self._delete,
        )
        fence: Any = SimpleNamespace(check=lambda _: None, run_to_completion=self._complete)
        self._service = DeletionService(host, fence)

    async def call(self, address: str, method: Any, request: Any, *, timeout_ms: int) -> Any:
        assert address == REMOVED.address
        return await self._service.delete_tablet(request)

    async def _delete(self, tablet: TabletId) -> None:
        self.deleted.append(tablet)

    @staticmethod
    async def _complete(work: Any) -> None:
        await work


def delete(server: Server, group: GroupView) -> None:
    core = SimpleNamespace(env=SimpleNamespace(rpc=server))
    directory: Any = SimpleNamespace(core=core, id="cluster")
    asyncio.run(MemberRpcs(directory, TABLET).delete(REMOVED, group))


def group_of(leader: ReplicaView, removed: ReplicaView) -> GroupView:
    servers: dict[str, ClusterServer] = {s.uuid: s for s in (LEADER, REMOVED)}
    return GroupView(TABLET, servers, {LEADER.uuid: leader, REMOVED.uuid: removed})


BEFORE = config(OpId(1, 29), LEADER, REMOVED)
AFTER = config(OpId(1, 30), LEADER)
NONE = Configuration((), NO_OP)


@pytest.mark.parametrize("committed", [NONE, BEFORE], ids=["uncommitted", "committed"])
def test_removed_replica_is_deleted_with_any_older_configuration_in_its_log(committed):
    server = Server(committed, BEFORE)
    delete(
        server, group_of(view("LEADER", AFTER, AFTER), view("NON_PARTICIPANT", committed, BEFORE))
    )
    assert server.deleted == [TABLET]


def test_replica_with_a_newer_configuration_than_the_groups_stays():
    newer = config(OpId(2, 31), LEADER, REMOVED)
    server = Server(BEFORE, newer)
    with pytest.raises(CasFailed, match=r"configuration of 2\.31 on this server, newer than 1\.30"):
        delete(server, group_of(view("LEADER", AFTER, AFTER), view("FOLLOWER", BEFORE, newer)))
    assert not server.deleted


def test_member_is_deleted_by_force_unless_its_own_configuration_has_changed_meanwhile():
    seen = group_of(view("", BEFORE, BEFORE), view("", NONE, BEFORE))
    server = Server(NONE, BEFORE)
    delete(server, seen)
    assert server.deleted == [TABLET]
    changed = Server(BEFORE, config(OpId(1, 31), LEADER, REMOVED))
    with pytest.raises(CasFailed):
        delete(changed, seen)
    assert not changed.deleted
