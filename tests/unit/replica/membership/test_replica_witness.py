"""Witnesses: members that have a log, vote and count for majorities, and have no data."""

from dataclasses import replace

import msgspec
import pytest

from nyala.common.errors import InvalidArgument, OutcomeUnknown
from nyala.common.ids import NO_OP, OpId
from nyala.common.options import Options
from nyala.raft.membership import initial
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.raft.status import Role
from nyala.replica.state_machine import FlushPoint
from nyala.replica.status import State
from tests.unit.replica.support import retention_support
from tests.unit.replica.support.member_support import SMALL, TINY, change, member, modify, three
from tests.unit.replica.support.replica_support import GROUP


async def witness(fleet, number, config, start=FlushPoint()):  # noqa: B008
    return await fleet.as_(number, fleet.host(number).create_witness(GROUP, config, start))


async def add_witness(fleet, number):
    """t=3 of the appendix: a witness joins at the leader's commit; its log begins there."""
    status = fleet.replica(await fleet.leader()).status()
    joined = member(number, electable=False, promote=True)
    config = replace(status.config, members=(*status.config.members, joined), id=NO_OP)
    await witness(fleet, number, config, FlushPoint(status.applied, status.applied_stamp))
    return await change(fleet, Change(ChangeKind.ADD, joined), expected=status.config.id)


@pytest.mark.row("S1.45")
@three()
async def test_witness_logs_and_votes_without_data_and_never_leads(fleet):
    await fleet.write(b"k 1")
    before = fleet.replica(await fleet.leader()).status().applied
    await add_witness(fleet, 3)
    await fleet.write(b"k 1")
    await fleet.settled()
    status = fleet.replica(3).status()
    assert status.role is Role.FOLLOWER
    assert status.durable == status.last.index > before.index
    assert status.unflushed_bytes == 0
    leader = await fleet.leader()
    followers = [n for n in range(3) if n != leader]
    fleet.processes[followers[0]].kill()
    assert (await fleet.write(b"k 1")).result == b"3", (
        "three of four are a majority with the witness"
    )
    fleet.processes[leader].kill()
    fleet.processes[followers[1]].kill()
    await fleet.pass_ms(5000)
    assert fleet.replica(3).status().role is Role.FOLLOWER, "a witness never campaigns"
    for number in followers:
        await fleet.restart(number)
    assert await fleet.leader(among=[*followers, 3]) != 3, (
        "three of four elect a leader with the witness's vote"
    )
    fleet.processes[3].kill(power_cut=True)
    await fleet.restart(3)
    assert fleet.replica(3).node.core.log.base == before
    await fleet.restart(leader)
    await fleet.settled()
    assert (await fleet.write(b"k 1")).result == b"4"
    assert fleet.processes[3].env.files.list(f"/data/data/{GROUP}") == ["witness"]


@pytest.mark.row("S1.46", "S1.47", "S1.48")
@three()
async def test_fault_tolerance_before_and_during_witness_join(fleet):
    await fleet.write(b"k 1")
    down = (await fleet.leader() + 1) % 3
    fleet.processes[down].kill()
    assert (await fleet.write(b"k 1")).result == b"2", "t=1: three voters tolerate the loss of one"
    await add_witness(fleet, 3)
    await fleet.settled()
    leader = await fleet.leader()
    other = next(n for n in range(3) if n not in (down, leader))
    fleet.network.partition([f"s{other}"], [f"s{leader}", "s3"])
    found = fleet.spawn(leader, fleet.call(leader, b"k 1"))
    await fleet.until(lambda: found, "an answer")
    assert isinstance(found[0], OutcomeUnknown), "t=3: two of four are not enough"
    fleet.network.heal()
    assert (await fleet.write(b"k 0")).result in (b"2", b"3")


@pytest.mark.row("S1.49", "S1.52", "W5")
@three()
async def test_witness_restores_fault_tolerance_and_committed_entries(fleet):
    await fleet.write(b"k 1")
    down = (await fleet.leader() + 1) % 3
    fleet.processes[down].kill()
    await fleet.leader()
    config = await add_witness(fleet, 3)
    await change(fleet, modify(down, voter=False, electable=False), expected=config.id)
    leader = await fleet.leader()
    other = next(n for n in range(3) if n not in (down, leader))
    fleet.processes[other].kill()
    assert (await fleet.write(b"k 1")).result == b"2", "t=4: leader and witness are a majority"
    committed = fleet.replica(leader).status().last
    fleet.processes[leader].kill(power_cut=True)
    await fleet.pass_ms(5000)
    status = fleet.replica(3).status()
    assert (status.role, fleet.leading()) == (Role.FOLLOWER, None), "a witness alone does not lead"
    assert status.last == committed, "the witness's log has all committed entries"
    await fleet.restart(leader)
    assert (await fleet.write(b"k 1")).result == b"3"


@pytest.mark.row("S1.49", "W5")
@three()
async def test_witness_restores_fault_tolerance_within_few_round_trips_whatever_the_data(fleet):
    blob = b"k" * 60_000 + b" 1"
    for _ in range(40):
        await fleet.write(blob)
    leader = await fleet.leader()
    down = (leader + 1) % 3
    fleet.processes[down].kill()
    await fleet.write(b"k 1")
    sent: list[int] = []
    fleet.network.faults.delay_us = 10_000
    fleet.network.on_send = lambda _, batch: sent.append(len(msgspec.msgpack.encode(batch)))
    began = fleet.loop.time()
    config = await add_witness(fleet, 3)
    await change(fleet, modify(down, voter=False, electable=False), expected=config.id)
    round_trips = (fleet.loop.time() - began) / 0.020
    fleet.network.on_send = None
    other = next(n for n in range(3) if n not in (down, leader))
    fleet.processes[other].kill()
    assert (await fleet.write(b"k 1")).result == b"2"
    assert round_trips < 3
    assert sum(sent) < 60_000, "the witness got data first"


async def two_and_a_witness(fleet, **more):
    """A group of its own: two with data and a witness."""
    config = initial([*fleet.config.members[:2], member(2, electable=False, **more)])
    for number in range(2):
        await fleet.as_(number, fleet.host(number).delete_replica(GROUP))
    group = GROUP.replace("a", "d")
    for number in range(2):
        await fleet.create(number, group, config)
    await fleet.as_(2, fleet.host(2).create_witness(group, config))
    return group


async def write_much(fleet, group):
    blob = b"k" * 60_000 + b" 1"
    for _ in range(60):
        await fleet.write(blob, group=group)
    await fleet.settled(group)


@three(options=SMALL)
async def test_permanent_witness_log_stays_small_and_keeps_entries_others_lack(fleet):
    fleet.processes[3].kill()
    group = await two_and_a_witness(fleet)
    wal = fleet.host(2).wal
    for _ in range(3):
        await write_much(fleet, group)
        await fleet.until(lambda: wal.stats().segments <= 3, "collected")
    fleet.processes[2].kill(power_cut=True)
    await fleet.restart(2)
    assert fleet.replica(2, group).state is not State.FAILED
    leader = await fleet.leader(group)
    lacking = 1 - leader
    fleet.processes[lacking].kill()
    await write_much(fleet, group)
    written = fleet.replica(leader, group).status().last
    fleet.processes[leader].kill(power_cut=True)
    await fleet.restart(lacking)
    assert await fleet.leader(group, among=[lacking, 2]) == lacking, (
        "the leader fetched its missing entries from the witness"
    )
    assert fleet.replica(lacking, group).status().last > written
    await fleet.write(b"k 1", group=group)


@pytest.mark.row("S1.53")
@three(options=TINY)
async def test_witness_log_is_complete_and_kept(fleet):
    fleet.processes[3].kill()
    group = await two_and_a_witness(fleet, promote=True)
    await write_much(fleet, group)
    for number in range(2):
        await fleet.as_(number, fleet.replica(number, group).flush())
    assert not await fleet.as_(2, fleet.replica(2, group).flush())
    await fleet.until(
        lambda: fleet.host(0).wal.stats().segments <= 3, "the other servers collect their logs"
    )
    await fleet.pass_ms(3000)
    wal = fleet.host(2).wal
    assert wal.stats().segments >= 4
    entries = await fleet.as_(2, wal.read(group, 1, 1 << 30))
    assert entries[0].id.index == 1
    assert entries[-1].id == fleet.replica(2, group).status().last


@three(options=Options.load(flags={**msgspec.to_builtins(TINY), "wal_retain_for_peers_mb": 2}))
async def test_log_of_witness_without_data_copy_is_bounded(fleet):
    fleet.processes[3].kill()
    group = await two_and_a_witness(fleet, promote=True)
    wal = fleet.host(2).wal
    for _ in range(4):
        await write_much(fleet, group)
        for number in range(2):
            await fleet.as_(number, fleet.replica(number, group).flush())
    await fleet.until(lambda: wal.stats().segments <= 4, "the log is collected")
    assert not wal.held_bytes()
    fleet.processes[2].kill(power_cut=True)
    await fleet.restart(2)
    assert fleet.replica(2, group).state is not State.FAILED
    await fleet.write(b"k 1", group=group)


@three(options=retention_support.SMALL)
async def test_witness_entries_do_not_anchor_log_of_other_groups(fleet):
    fleet.processes[3].kill()
    group = await two_and_a_witness(fleet, promote=True)
    await fleet.write(b"k 1", group=group)
    await retention_support.beside(fleet, (0, 2))
    assert max(await retention_support.busy(fleet, on=(0, 2))) < 8
    wal = fleet.host(2).wal
    assert wal.stats().moved > 0
    assert (await fleet.as_(2, wal.read(group, 1, 1 << 30)))[0].id.index == 1


@three()
async def test_witness_is_created_only_when_configured_as_witness(fleet):
    config = replace(fleet.config, members=(*fleet.config.members, member(3, electable=False)))
    with pytest.raises(InvalidArgument, match="create_witness"):
        await fleet.create(3, GROUP, config)
    plain = fleet.configuration(range(4))
    with pytest.raises(InvalidArgument, match="no witness"):
        await witness(fleet, 3, plain)
    with pytest.raises(InvalidArgument, match="after"):
        await witness(fleet, 3, replace(config, id=OpId(1, 5)))
    assert fleet.host(3).find(GROUP) is None
    await witness(fleet, 3, config)
    fleet.processes[3].kill()
    path = f"/data/data/{GROUP}/witness"
    fleet.processes[3].disk.flip_bit(path, 9)
    await fleet.restart(3)
    assert fleet.replica(3).state is State.FAILED
