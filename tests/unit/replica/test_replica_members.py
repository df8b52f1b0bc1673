"""Members come and go: changes through replicas, what is durable when, restarts, witnesses."""

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
from nyala.common.ids import NO_OP, OpId
from nyala.common.options import Options
from nyala.raft.changes import Change, ChangeKind
from nyala.raft.membership import Configuration, Member, initial
from nyala.raft.status import Role
from nyala.replica.state_machine import Cut
from nyala.replica.status import State
from nyala.wal.cmeta import ConsensusMetadata
from tests.sim.files import SimFiles
from tests.unit.replica.replica_support import GROUP, story, uuid_of

SMALL = Options(wal_segment_mb=1, wal_retain_mb=0, flush_bytes=1 << 18, flush_log_bytes=1 << 18)
TINY = Options(wal_segment_mb=1, wal_retain_mb=0, flush_bytes=1 << 30, flush_log_bytes=1 << 30)


def member(number, **more):
    return Member(uuid_of(number), f"s{number}:9", f"s{number}:7", **more)


def add(number, **more):
    return Change(ChangeKind.ADD, member(number, **more))


def remove(number):
    return Change(ChangeKind.REMOVE, member(number))


def modify(number, **more):
    return Change(ChangeKind.MODIFY, member(number, **more))


async def change(fleet, *changes, expected=None, timeout_ms=5000, leader=None):
    """Change the members by whoever leads, as a driver would: a later leader is asked when one goes."""
    while True:
        number = await fleet.leader() if leader is None else leader
        try:
            work = fleet.replica(number).change_config(changes, expected, timeout_ms)
            found = await fleet.as_(number, work)
        except Unavailable:
            await fleet.pass_ms(50)
        except NotLeader as err:
            if err.details.get("reason") != "STEPPING_DOWN":
                raise
            await fleet.until(lambda n=number: fleet.leading() not in (None, n), "handed over")
        else:
            assert isinstance(found, Configuration)
            return found


async def join(fleet, number, **more):
    """Make a replica on a server that is to become a member."""
    members = [*fleet.config.members, member(number, **more)]
    await fleet.create(number, GROUP, initial(members))


def saved(fleet, number):
    """The configuration in a server's consensus metadata, on its disk."""
    metadata = ConsensusMetadata(SimFiles(fleet.processes[number].disk), "/data")
    found = metadata.load(GROUP)
    assert found is not None
    return found[1]


def three(servers=4, options=None):
    """A fleet of which the first three have the group."""

    def decorate(fn):
        @story(servers=servers, options=options, start=False)
        async def tell(fleet):
            fleet.config = fleet.configuration(range(3))
            for number in range(servers):
                await fleet.boot(number)
            for number in range(3):
                await fleet.create(number, GROUP)
            await fn(fleet)

        tell.__name__ = fn.__name__
        return tell

    return decorate


def names(config):
    return [int(m.uuid, 16) for m in config.members]


# ---- changes -----------------------------------------------------------------------------------------


@pytest.mark.row("S4.32")
@three()
async def test_a_new_member_gets_the_log_and_counts(fleet):
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
    await fleet.until(lambda: fleet.replica(3).status().role is Role.FOLLOWER, "it knows")
    with pytest.raises(CasFailed):
        await change(fleet, remove(3), expected=NO_OP)
    with pytest.raises(InvalidArgument):
        await change(fleet, add(3))


@three(servers=3)
async def test_a_follower_changes_nothing_and_names_the_leader(fleet):
    leader = await fleet.leader()
    follower = (leader + 1) % 3
    await fleet.until(lambda: fleet.replica(follower).state is State.RUNNING, "it heard")
    with pytest.raises(NotLeader) as caught:
        await change(fleet, remove(leader), leader=follower)
    assert caught.value.address == f"s{leader}:7"
    assert fleet.replica(leader).status().config.id == NO_OP


@three(servers=3)
async def test_a_leader_that_is_to_go_says_who_leads_next_and_where(fleet):
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
async def test_a_change_in_flight_when_leadership_is_lost_has_an_unknown_outcome(fleet):
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
    assert fleet.replica(leader).status().config.id == NO_OP, "rolled back"


@pytest.mark.row("S1.22")
@three(servers=3)
async def test_a_removed_replica_learns_of_it_disturbs_nobody_and_is_no_participant(fleet):
    await fleet.write(b"k 1")
    leader = await fleet.leader()
    gone = (leader + 1) % 3
    config = await change(fleet, remove(gone))
    await fleet.until(lambda: saved(fleet, gone).id == config.id, "told")
    assert fleet.replica(gone).status().role is Role.NON_PARTICIPANT
    terms = [fleet.replica(n).status().term for n in range(3)]
    await fleet.pass_ms(5000)
    assert [fleet.replica(n).status().term for n in range(3)] == terms
    assert fleet.leading() == leader
    await fleet.as_(gone, fleet.host(gone).delete_replica(GROUP))
    assert fleet.replica(gone).status().role is Role.NON_PARTICIPANT
    assert (await fleet.write(b"k 1")).result == b"2"


# ---- what is durable when ----------------------------------------------------------------------------


@pytest.mark.row("S1.18")
@three()
async def test_a_configuration_is_in_the_metadata_once_committed_and_not_before(fleet):
    leader = await fleet.leader()
    others = [n for n in range(3) if n != leader]
    fleet.network.partition([f"s{leader}"], [f"s{n}" for n in others])
    found = fleet.spawn(
        leader, fleet.replica(leader).change_config([add(3, voter=False)], None, 60_000)
    )
    await fleet.until(lambda: len(fleet.replica(leader).status().config.members) == 4, "active")
    await fleet.pass_ms(100)
    assert names(saved(fleet, leader)) == [0, 1, 2], "in memory and in the log only"
    fleet.network.heal()
    await fleet.until(lambda: found, "an answer")
    if not isinstance(found[0], Configuration):
        found[0] = await change(fleet, add(3, voter=False))
    for number in range(3):
        await fleet.until(lambda n=number: saved(fleet, n).id == found[0].id, "saved")
    for process in fleet.processes:
        process.kill(power_cut=True)
    for number in range(3):
        assert saved(fleet, number).id == found[0].id, "and synced"


async def written_and_collected(fleet):
    """More than the log keeps is written, flushed, and let go of."""
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
async def test_the_log_lets_go_of_configuration_entries(fleet):
    fleet.processes[3].kill()
    config = await change(fleet, add(3, voter=False))
    config = await change(fleet, remove(3), expected=config.id)
    await written_and_collected(fleet)
    leader = await fleet.leader()
    fleet.processes[leader].kill(power_cut=True)
    await fleet.restart(leader)
    status = fleet.replica(leader).status()
    node = fleet.replica(leader).node
    assert node.core.log.base.index > config.id.index, "the log no longer has it"
    assert (status.config, status.committed_config) == (config, config)


@pytest.mark.row("S1.30")
@three()
async def test_a_pending_configuration_is_active_again_after_a_restart(fleet):
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
    assert fleet.leading() is None, "two of four decide nothing"
    await fleet.create(3, GROUP, replace(pending, id=NO_OP))
    await fleet.leader(among=[leader, others[0], 3])
    assert (await fleet.write(b"k 1")).result == b"2"


@three(options=msgspec.structs.replace(TINY, raft_cache_bytes=0))
async def test_a_member_whose_entries_are_no_longer_in_the_log_needs_a_copy(fleet):
    fleet.processes[3].kill()
    await written_and_collected(fleet)
    await fleet.restart(3)
    await join(fleet, 3, voter=False)
    await change(fleet, add(3, voter=False))

    def needing():
        peers = fleet.replica(fleet.leading()).status().peers
        return [int(p.uuid, 16) for p in peers if p.needs_copy]

    await fleet.until(lambda: needing() == [3], "its leader says so")
    assert (await fleet.write(b"k 1")).result == b"1", "and goes on"


# ---- witnesses ---------------------------------------------------------------------------------------


async def witness(fleet, number, config, start=Cut()):  # noqa: B008
    return await fleet.as_(number, fleet.host(number).create_witness(GROUP, config, start))


async def add_witness(fleet, number):
    """t=3 of the appendix: a witness joins at the leader's commit; its log begins there."""
    status = fleet.replica(await fleet.leader()).status()
    joined = member(number, electable=False, promote=True)
    config = replace(status.config, members=(*status.config.members, joined), id=NO_OP)
    await witness(fleet, number, config, Cut(status.applied, status.applied_stamp))
    return await change(fleet, Change(ChangeKind.ADD, joined), expected=status.config.id)


@pytest.mark.row("S1.45")
@three()
async def test_a_witness_logs_votes_and_counts_and_has_no_data(fleet):
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
    assert (await fleet.write(b"k 1")).result == b"3", "three of four, one of them the witness"
    fleet.processes[leader].kill()
    fleet.processes[followers[1]].kill()
    await fleet.pass_ms(5000)
    assert fleet.replica(3).status().role is Role.FOLLOWER, "it never stands"
    for number in followers:
        await fleet.restart(number)
    assert await fleet.leader(among=[*followers, 3]) != 3, "three of four elect, with its vote"
    fleet.processes[3].kill(power_cut=True)
    await fleet.restart(3)
    assert fleet.replica(3).node.core.log.base == before
    await fleet.restart(leader)
    await fleet.settled()
    assert (await fleet.write(b"k 1")).result == b"4"
    assert fleet.processes[3].env.files.list(f"/data/data/{GROUP}") == ["witness"]


@pytest.mark.row("S1.46", "S1.47", "S1.48")
@three()
async def test_fault_tolerance_before_and_while_a_witness_joins(fleet):
    await fleet.write(b"k 1")
    down = (await fleet.leader() + 1) % 3
    fleet.processes[down].kill()
    assert (await fleet.write(b"k 1")).result == b"2", "t=1: three tolerate any one"
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


@pytest.mark.row("S1.49", "S1.52")
@three()
async def test_a_witness_restores_fault_tolerance_and_keeps_what_was_committed(fleet):
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
    assert (status.role, fleet.leading()) == (Role.FOLLOWER, None), (
        "the witness alone serves nobody"
    )
    assert status.last == committed, "and its log has what was committed"
    await fleet.restart(leader)
    assert (await fleet.write(b"k 1")).result == b"3"


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
async def test_the_log_of_a_witness_for_good_stays_small_and_has_what_another_lacks(fleet):
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
    assert await fleet.leader(group, among=[lacking, 2]) == lacking, "with the witness' help"
    assert fleet.replica(lacking, group).status().last > written
    await fleet.write(b"k 1", group=group)


@pytest.mark.row("S1.53")
@three(options=TINY)
async def test_the_log_of_a_witness_is_all_that_it_has_and_stays(fleet):
    fleet.processes[3].kill()
    group = await two_and_a_witness(fleet, promote=True)
    await write_much(fleet, group)
    for number in range(2):
        await fleet.as_(number, fleet.replica(number, group).flush())
    assert not await fleet.as_(2, fleet.replica(2, group).flush())
    await fleet.until(lambda: fleet.host(0).wal.stats().segments <= 3, "the others collect")
    await fleet.pass_ms(3000)
    wal = fleet.host(2).wal
    assert wal.stats().segments >= 4
    entries = await fleet.as_(2, wal.read(group, 1, 1 << 30))
    assert entries[0].id.index == 1
    assert entries[-1].id == fleet.replica(2, group).status().last


@three()
async def test_a_witness_is_made_as_one_and_nothing_else_is(fleet):
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
