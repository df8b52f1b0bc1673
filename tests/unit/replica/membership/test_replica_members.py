"""Membership changes through replicas: durability of configurations, restarts."""

from dataclasses import replace

import msgspec
import pytest

from nyala.common.errors import (
    CasFailed,
    InvalidArgument,
    NotLeader,
    OutcomeUnknown,
    Unavailable,
)
from nyala.common.ids import NO_OP
from nyala.raft.membership import Configuration
from nyala.raft.status import Role
from nyala.replica.status import State
from tests.unit.replica.support.member_support import (
    TINY,
    add,
    change,
    join,
    modify,
    names,
    remove,
    saved,
    three,
)
from tests.unit.replica.support.replica_support import GROUP


@pytest.mark.row("S4.32")
@three()
async def test_new_member_receives_log_and_counts_for_majority(fleet):
    await fleet.write(b"k 1")
    await join(fleet, 3, voter=False)
    config = await change(fleet, add(3, voter=False), expected=NO_OP)
    assert names(config) == [0, 1, 2, 3]
    assert config.id.index > 0
    await fleet.settled()
    assert fleet.machine(3).sums == {"k": 1}
    assert fleet.replica(3).status().role is Role.LEARNER
    config = await change(fleet, modify(3), expected=config.id)
    assert len(config.voters) == 4
    await fleet.until(
        lambda: fleet.replica(3).status().role is Role.FOLLOWER, "the new member is a follower"
    )
    with pytest.raises(CasFailed):
        await change(fleet, remove(3), expected=NO_OP)
    with pytest.raises(InvalidArgument):
        await change(fleet, add(3))


@three(servers=3)
async def test_follower_refuses_configuration_change_with_leader_hint(fleet):
    leader = await fleet.leader()
    follower = (leader + 1) % 3
    await fleet.until(
        lambda: fleet.replica(follower).state is State.RUNNING,
        "the follower knows that its group runs",
    )
    with pytest.raises(NotLeader) as caught:
        await change(fleet, remove(leader), leader=follower)
    assert caught.value.address == f"s{leader}:7"
    assert fleet.replica(leader).status().config.id == NO_OP


@three(servers=3)
async def test_leader_being_removed_names_its_successor_and_address(fleet):
    leader = await fleet.leader()
    work = fleet.replica(leader).change_config([remove(leader)], None, 5000)
    with pytest.raises(NotLeader) as caught:
        await fleet.as_(leader, work)
    assert caught.value.details["reason"] == "STEPPING_DOWN"
    successor = int(caught.value.details["leader"], 16)
    assert caught.value.address == f"s{successor}:7"
    await fleet.until(lambda: fleet.leading() == successor, "handed over")
    config = await change(fleet, remove(leader), leader=successor)
    assert leader not in names(config)


@three(servers=3)
async def test_configuration_change_with_lost_leadership_has_unknown_outcome(fleet):
    leader = await fleet.leader()
    others = [n for n in range(3) if n != leader]
    fleet.network.partition([f"s{leader}"], [f"s{n}" for n in others])
    work = fleet.replica(leader).change_config([remove(others[0])], None, 30_000)
    found = fleet.spawn(leader, work)
    late = fleet.spawn(leader, fleet.replica(leader).change_config([remove(others[0])], None, 9000))
    await fleet.until(lambda: found and late, "errors")
    assert isinstance(found[0], OutcomeUnknown)
    assert isinstance(late[0], Unavailable), "an earlier change is not committed"
    fleet.network.heal()
    await fleet.settled()
    assert fleet.replica(leader).status().config.id == NO_OP, "the change was rolled back"


@pytest.mark.row("S1.22")
@three(servers=3)
async def test_removed_replica_is_notified_and_stops_participating(fleet):
    await fleet.write(b"k 1")
    leader = await fleet.leader()
    removed = (leader + 1) % 3
    config = await change(fleet, remove(removed))
    await fleet.until(
        lambda: saved(fleet, removed).id == config.id,
        "the removed member has saved the configuration",
    )
    assert fleet.replica(removed).status().role is Role.NON_PARTICIPANT
    terms = [fleet.replica(n).status().term for n in range(3)]
    await fleet.pass_ms(5000)
    assert [fleet.replica(n).status().term for n in range(3)] == terms
    assert fleet.leading() == leader
    await fleet.as_(removed, fleet.host(removed).delete_replica(GROUP))
    assert fleet.replica(removed).status().role is Role.NON_PARTICIPANT
    assert (await fleet.write(b"k 1")).result == b"2"


@pytest.mark.row("S1.18")
@three()
async def test_configuration_is_saved_in_metadata_only_when_committed(fleet):
    leader = await fleet.leader()
    others = [n for n in range(3) if n != leader]
    fleet.network.partition([f"s{leader}"], [f"s{n}" for n in others])
    found = fleet.spawn(
        leader, fleet.replica(leader).change_config([add(3, voter=False)], None, 60_000)
    )
    await fleet.until(lambda: len(fleet.replica(leader).status().config.members) == 4, "active")
    await fleet.pass_ms(100)
    assert names(saved(fleet, leader)) == [0, 1, 2], (
        "the new configuration is in memory and in the log only"
    )
    fleet.network.heal()
    await fleet.until(lambda: found, "an answer")
    if not isinstance(found[0], Configuration):
        found[0] = await change(fleet, add(3, voter=False))
    for number in range(3):
        await fleet.until(lambda n=number: saved(fleet, n).id == found[0].id, "saved")
    for process in fleet.processes:
        process.kill(power_cut=True)
    for number in range(3):
        assert saved(fleet, number).id == found[0].id, "the saved configuration is synced"


async def written_and_collected(fleet):
    """Write more than the log keeps, flush, and collect."""
    blob = b"k" * 60_000 + b" 1"
    for _ in range(60):
        await fleet.write(blob)
    await fleet.settled()
    for number in range(3):
        await fleet.as_(number, fleet.replica(number).flush())
    for number in range(3):
        wal = fleet.host(number).wal
        await fleet.until(lambda w=wal: w.stats().segments <= 3, "collected")


@pytest.mark.row("S1.19")
@three(options=TINY)
async def test_configuration_entries_in_log_are_collected(fleet):
    fleet.processes[3].kill()
    config = await change(fleet, add(3, voter=False))
    config = await change(fleet, remove(3), expected=config.id)
    await written_and_collected(fleet)
    leader = await fleet.leader()
    fleet.processes[leader].kill(power_cut=True)
    await fleet.restart(leader)
    status = fleet.replica(leader).status()
    node = fleet.replica(leader).node
    assert node.core.log.base.index > config.id.index, (
        "the log no longer has the configuration entry"
    )
    assert (status.config, status.committed_config) == (config, config)


@pytest.mark.row("S1.30")
@three()
async def test_pending_configuration_is_active_after_restart(fleet):
    leader = await fleet.leader()
    await fleet.write(b"k 1")
    others = [n for n in range(3) if n != leader]
    for number in others:
        fleet.processes[number].kill()
    fleet.spawn(leader, fleet.replica(leader).change_config([add(3)], None, 60_000))
    await fleet.until(
        lambda: (
            fleet.replica(leader).status().durable == fleet.replica(leader).status().last.index
            and len(fleet.replica(leader).status().config.members) == 4
        ),
        "logged",
    )
    pending = fleet.replica(leader).status().config
    fleet.processes[leader].kill(power_cut=True)
    await fleet.restart(leader)
    status = fleet.replica(leader).status()
    assert status.config == pending
    assert names(status.committed_config) == [0, 1, 2]
    await fleet.restart(others[0])
    await fleet.pass_ms(3000)
    assert fleet.leading() is None, "two of four are not a majority"
    await fleet.create(3, GROUP, replace(pending, id=NO_OP))
    await fleet.leader(among=[leader, others[0], 3])
    assert (await fleet.write(b"k 1")).result == b"2"


@three(options=msgspec.structs.replace(TINY, raft_cache_bytes=0))
async def test_member_whose_entries_were_collected_needs_copy(fleet):
    fleet.processes[3].kill()
    await written_and_collected(fleet)
    await fleet.restart(3)
    await join(fleet, 3, voter=False)
    await change(fleet, add(3, voter=False))

    def needing():
        peers = fleet.replica(fleet.leading()).status().peers
        return [int(p.uuid, 16) for p in peers if p.needs_copy]

    await fleet.until(lambda: needing() == [3], "the leader reports that the member needs a copy")
    assert (await fleet.write(b"k 1")).result == b"1", "the group accepts writes"
