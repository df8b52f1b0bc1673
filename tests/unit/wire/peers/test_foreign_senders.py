"""Senders of Raft messages that are no members as the masters know them: a line in the audit log."""

import asyncio
from types import SimpleNamespace
from typing import Any

import uvloop

from nyala.admin.group_members import GroupMembers
from nyala.common.ids import ServerUuid, TabletId
from nyala.env.env import system_env
from nyala.raft.membership import Member, initial
from nyala.wire import convert
from nyala.wire.channels import GrpcRpc
from nyala.wire.peers import PeerTransport
from nyala.wire.proto import access_pb2 as pb
from tests.unit.wire.support.peer_port import CLUSTER, A, B

TABLET, STRANGER = TabletId("1" * 32), ServerUuid("f" * 32)


class Leader:
    """The leader master's answer."""

    async def call(self, *_: object, **__: object) -> pb.MembersResponse:
        config = initial([Member(A, "a:1"), Member(B, "b:1")])
        return pb.MembersResponse(consensus=convert.consensus_to_proto(config, 1, None))


class Lines:
    """An audit log in memory."""

    def __init__(self) -> None:
        self.found: list[tuple[object, ...]] = []

    async def note(self, event: str, **fields: Any) -> None:
        self.found.append((event, fields["who"], fields["why"]))


def test_sender_that_the_masters_do_not_name_either_has_one_line():
    audit = Lines()

    async def scenario():
        rpc = GrpcRpc()
        env = system_env(rpc)
        transport = PeerTransport(env, lambda: CLUSTER, audit=audit)
        await transport.listen("127.0.0.1:0", B)
        asked: Any = SimpleNamespace(rpc=Leader())
        members = GroupMembers(asked, lambda: "m:1", transport.note_foreign)
        for sender in (A, STRANGER, STRANGER, B):
            found = await members.find(TABLET, sender)
            assert found is not None
            assert sorted(found.uuids) == sorted([A, B])
        await transport.close()
        await env.tasks.close()
        await rpc.close()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    uvloop.run(scenario())
    why = f"messages of {STRANGER} to tablet {TABLET}, of which it is no member"
    assert audit.found == [("refused", f"{STRANGER}: no member", why)]
