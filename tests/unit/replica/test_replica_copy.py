"""A copy of a replica is a replica: its files, its log, its place in the group; and what is refused."""

import pytest

from nyala.raft.changes import Change, ChangeKind
from nyala.raft.membership import Member
from nyala.raft.status import Role
from nyala.replica.copying import Stage
from tests.unit.replica.copy_support import story
from tests.unit.replica.replica_support import uuid_of


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


@pytest.mark.row("S1.37")
@story()
async def test_a_copy_has_files_and_log_and_becomes_a_member(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    await fill(fleet)
    assert (await fleet.order(3, leader)).stage in ("STARTING", "FILES")
    progress = await fleet.copied(3)
    assert progress.stage is Stage.WAITING
    assert progress.bytes_done == progress.bytes_total > 3000
    assert progress.last == fleet.replica(leader).status().last
    assert fleet.replica(3).role is Role.NON_PARTICIPANT
    assert fleet.sessions() == 1, "the source keeps its log"
    await add(fleet, 3)
    await fleet.until(lambda: fleet.stage(3) is Stage.DONE, "the leader knows it")
    await fleet.until(lambda: fleet.replica(3).role is Role.FOLLOWER, "promoted")
    await fill(fleet, 5)
    await fleet.settled()
    assert fleet.machine(3).sums == {"k": 45}
    assert fleet.machine(3).runs <= 25, "the files were copied, not their history"
    await fleet.until(lambda: fleet.sessions() == 0, "the session is over")
    assert not fleet.machine(leader).held
    await fleet.restart_after_power_cut(3)
    await fleet.settled()
    assert fleet.machine(3).sums == {"k": 45}
