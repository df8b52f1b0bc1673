"""Steps before and around a copy: writes, flushes, a new member."""

from nyala.raft.membership import Member
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from tests.unit.replica.support.replica_support import uuid_of


def newcomer(number, *, voter=False, promote=True):
    return Member(uuid_of(number), f"s{number}:9", f"s{number}:7", voter=voter, promote=promote)


async def add(fleet, number, **more):
    leader = await fleet.leader()
    change = Change(ChangeKind.ADD, newcomer(number, **more))
    await fleet.as_(leader, fleet.replica(leader).change_config([change], None, 10_000))


async def fill(fleet, writes=20):
    for _ in range(writes):
        await fleet.write(b"k 1")


async def flush(fleet):
    leader = await fleet.leader()
    await fleet.as_(leader, fleet.replica(leader).flush())
    return leader
