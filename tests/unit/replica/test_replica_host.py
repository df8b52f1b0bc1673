"""The host: many groups, life and death of replicas, restarts at every step, damage, a broken disk."""

import pytest

from nyala.common.errors import (
    AlreadyPresent,
    InvalidArgument,
    NotFound,
    NyalaError,
    OutcomeUnknown,
    Unavailable,
)
from nyala.common.ids import OpId, TabletId
from nyala.common.options import Options
from nyala.raft.messages import AppendEntries, HardState, PeerBatch, RequestVote
from nyala.raft.status import Role
from nyala.replica.status import State
from nyala.replica.superblock import Stage, Superblocks
from nyala.replica.turns import RELIEVED_AT_ONCE
from tests.unit.replica.replica_support import GROUP, AddingMachine, story, uuid_of

MANY = [TabletId(f"{n:032x}") for n in range(100, 120)]
OTHER = TabletId("b" * 32)
TINY = Options(wal_segment_mb=1, wal_retain_mb=0, flush_bytes=1 << 30, flush_log_bytes=1 << 30)


@pytest.mark.row("S4.28")
@story(groups=MANY)
async def test_a_server_is_in_many_groups_and_each_has_its_own_log_and_leader(fleet):
    for n, group in enumerate(MANY):
        assert (await fleet.write(b"k %d" % n, group=group, sequence=1)).result == b"%d" % n
    for process in fleet.processes:
        process.kill(power_cut=True)
    for number in range(3):
        await fleet.restart(number)
    for n, group in enumerate(MANY):
        again = await fleet.write(b"k %d" % n, group=group, sequence=1)
        assert (again.result, again.duplicate) == (b"%d" % n, True)
    leaders = {fleet.leading(g) for g in MANY}
    assert len(leaders) > 1
    assert [r.group for r in fleet.host(0).all()] == MANY


@story(groups=MANY)
async def test_heartbeats_of_all_groups_travel_together(fleet):
    for group in MANY:
        await fleet.leader(group)
    counts = fleet.loop.trace.counts
    before = counts["peer_sent"]
    await fleet.pass_ms(1000)
    # 20 groups x 2 followers x 10 heartbeats and their answers would be 800 if each went alone
    assert 0 < counts["peer_sent"] - before < 300


@story(start=False)
async def test_a_group_becomes_running_once_its_leader_has_committed_in_its_term(fleet):
    for number in range(3):
        await fleet.boot(number)
    await fleet.create(0, GROUP)
    assert fleet.replica(0).state is State.CONFIGURING
    await fleet.pass_ms(3000)
    assert fleet.replica(0).state is State.CONFIGURING, "one of three elects nobody"
    assert fleet.replica(0).status().role in (Role.CANDIDATE, Role.FOLLOWER)
    await fleet.create(1, GROUP)
    leader = await fleet.leader()
    status = fleet.replica(leader).status()
    assert status.role is Role.LEADER
    assert status.commit >= 1
    follower = 1 - leader
    await fleet.until(lambda: fleet.replica(follower).state is State.RUNNING, "it heard")
    assert fleet.replica(follower).status().leader == uuid_of(leader)


@story()
async def test_a_write_to_a_leader_that_has_not_committed_yet_waits_for_it(fleet):
    old = await fleet.leader()
    others = [n for n in range(3) if n != old]
    fleet.processes[old].kill()
    while not any(fleet.replica(n).is_leader for n in others):
        await fleet.loop.delay(50)
    new = next(n for n in others if fleet.replica(n).is_leader)
    assert fleet.replica(new).state is State.CONFIGURING
    assert (await fleet.as_(new, fleet.call(new, b"k 1"))).result == b"1"


# ---- restart -----------------------------------------------------------------------------------------


@pytest.mark.row("S4.34")
@story()
async def test_a_reopened_replica_has_its_whole_log_before_it_says_a_word(fleet):
    for _ in range(5):
        await fleet.write(b"k 1")
    await fleet.settled()
    await fleet.as_(1, fleet.replica(1).flush())
    for _ in range(5):
        await fleet.write(b"k 1")
    await fleet.settled()
    before = fleet.replica(1).status()
    fleet.processes[1].kill(power_cut=True)
    fleet.network.partition(["s1"], ["s0", "s2"])
    await fleet.restart(1)
    status = fleet.replica(1).status()
    assert status.last == before.last, "log first"
    assert status.durable == before.last.index
    assert status.term == before.term
    assert status.cut == OpId(status.cut.term, 6)
    assert fleet.machine(1).sums == {"k": 5}, "and the files as of their cut"
    fleet.network.heal()
    await fleet.settled()
    assert fleet.machine(1).sums == {"k": 10}
    assert fleet.machine(1).runs == 5


@pytest.mark.parametrize("step", range(1, 40, 2))
def test_a_crash_at_any_file_operation_keeps_what_was_acknowledged(step):
    @story(servers=1, options=Options(wal_segment_mb=1, flush_bytes=12), start=False)
    async def tell(fleet):
        await fleet.boot(0)
        process = fleet.processes[0]
        acknowledged = 0
        if step % 4 == 3:  # crash while it is made, as well as later
            process.disk.die_after(step)
        made = fleet.spawn(0, fleet.create(0, GROUP))
        await fleet.until(lambda: made or not process.alive, "made or dead")
        if process.alive:
            process.disk.die_after(step)
            for n in range(1, 40):
                await fleet.until(lambda: not process.alive or fleet.leading() == 0, "leads")
                if not process.alive:
                    break
                answer = fleet.spawn(0, fleet.call(0, b"k 1", sequence=n))
                await fleet.until(lambda a=answer: a or not process.alive, "answered or dead")
                if answer:
                    acknowledged = int(answer[0].result)
        process.kill()
        process.power_cut()
        await fleet.restart(0)
        if fleet.host(0).find(GROUP) is None:
            assert acknowledged == 0
            await fleet.create(0, GROUP)
        again = await fleet.write(b"k 0", sequence=1000)
        assert int(again.result) in (acknowledged, acknowledged + 1)

    tell()


@story(options=TINY)
async def test_a_follower_that_was_away_catches_up_from_the_log(fleet):
    leader = await fleet.leader()
    away = (leader + 1) % 3
    fleet.processes[away].kill()
    big = b"k 1" + b" " * 100_000
    for _ in range(60):  # six segments, more than any cache holds
        await fleet.write(big)
    for n in fleet.alive():
        await fleet.as_(n, fleet.replica(n).flush())
    await fleet.pass_ms(3000)
    leader = await fleet.leader()
    assert fleet.host(leader).wal.stats().segments > 5, "the configured follower still needs them"
    await fleet.restart(away)
    await fleet.settled()
    assert fleet.machine(away).sums == {"k": 60}
    await fleet.pass_ms(3000)
    leader = await fleet.leader()
    assert fleet.host(leader).wal.stats().segments <= 3, "nobody needs them any more"


@story(options=TINY)
async def test_whoever_leads_next_still_has_what_a_follower_that_was_away_needs(fleet):
    leader = await fleet.leader()
    away = (leader + 1) % 3
    fleet.processes[away].kill()
    big = b"k 1" + b" " * 100_000
    for _ in range(60):
        await fleet.write(big)
    for n in fleet.alive():
        await fleet.as_(n, fleet.replica(n).flush())
    await fleet.pass_ms(3000)
    heir = next(n for n in fleet.alive() if n != leader)
    assert fleet.host(heir).wal.stats().segments > 5, "it may lead next, and then has to send them"
    fleet.processes[leader].kill()
    await fleet.restart(away)
    await fleet.settled()
    assert await fleet.leader() == heir, "only it is up to date"
    assert fleet.machine(away).sums == {"k": 60}


@story(groups=(GROUP, OTHER), options=Options(wal_segment_mb=1, wal_retain_mb=2))
async def test_a_quiet_group_does_not_hold_the_log_for_ever(fleet):
    await fleet.write(b"k 7", group=OTHER)
    big = b"k 1" + b" " * 100_000
    for _ in range(80):
        await fleet.write(big)
    await fleet.pass_ms(5000)
    leader = await fleet.leader()
    assert fleet.replica(leader, OTHER).status().cut.index > 0, "its tail was flushed"
    assert fleet.host(leader).wal.stats().segments <= 4
    for process in fleet.processes:
        process.kill(power_cut=True)
    for number in range(3):
        await fleet.restart(number)
    assert (await fleet.write(b"k 0", group=OTHER, sequence=999)).result == b"7"


QUIET = tuple(TabletId(f"{n:032x}") for n in range(500, 560))


@story(servers=1, groups=(GROUP, *QUIET), options=Options(wal_segment_mb=1, wal_retain_mb=2))
async def test_all_quiet_groups_that_hold_the_log_are_flushed_and_not_too_many_at_a_time(fleet):
    for group in QUIET:
        await fleet.write(b"k 7", group=group)
    flushing: list[float] = []
    for group in QUIET:
        machine = fleet.machine(0, group)
        machine.prepare_flush = counted(machine.prepare_flush, flushing, fleet.loop)
    big = b"k 1" + b" " * 100_000
    for _ in range(80):
        await fleet.write(big)
    wal = fleet.host(0).wal
    await fleet.until(lambda: wal.stats().segments <= 4, "collected", timeout_ms=10_000)
    assert {fleet.replica(0, g).status().cut.index > 0 for g in QUIET} == {True}
    assert len(flushing) == len(QUIET)
    first = [at for at in flushing if at < flushing[0] + 0.5]
    assert len(first) <= RELIEVED_AT_ONCE < len(QUIET)


def counted(prepare, times, loop):
    """`prepare`, with a note of when it was called."""

    def noted(cut):
        times.append(loop.time())
        return prepare(cut)

    return noted


# ---- create and delete -------------------------------------------------------------------------------


@story()
async def test_a_replica_is_made_once_and_only_for_members(fleet):
    with pytest.raises(AlreadyPresent):
        await fleet.create(0, GROUP)
    with pytest.raises(InvalidArgument, match="not in the configuration"):
        await fleet.create(0, OTHER, fleet.configuration([1, 2]))
    with pytest.raises(NotFound):
        fleet.host(0).get(OTHER)
    assert fleet.host(0).find(OTHER) is None


@story(start=False)
async def test_two_orders_to_make_one_replica_make_one(fleet):
    await fleet.boot(0)
    one = fleet.spawn(0, fleet.create(0, GROUP))
    two = fleet.spawn(0, fleet.create(0, GROUP))
    await fleet.until(lambda: one and two, "both answered")
    assert sorted(type(x[0]).__name__ for x in (one, two)) == ["Replica", "Unavailable"]


@story(servers=1)
async def test_a_full_disk_refuses_a_new_replica_and_harms_no_other(fleet):
    await fleet.write(b"k 1")
    disk = fleet.processes[0].disk
    disk.faults.capacity_bytes = disk.used_bytes() + 300
    with pytest.raises(OSError, match="space"):
        await fleet.as_(
            0,
            fleet.host(0).create_replica(OTHER, fleet.config, lambda d: _hog(fleet, d)),
        )
    assert fleet.host(0).find(OTHER) is None
    disk.faults.capacity_bytes = None
    assert (await fleet.write(b"k 1")).result == b"2"
    await fleet.create(0, OTHER)
    assert (await fleet.write(b"k 1", group=OTHER)).result == b"1"


def _hog(fleet, directory):
    files = fleet.processes[0].env.files
    files.write_new(f"{directory}/hog", [b"x" * 1000])
    return AddingMachine(files, directory)


@story()
async def test_a_deleted_replica_keeps_its_promises_and_nothing_else(fleet):
    await fleet.write(b"k 1")
    await fleet.settled()
    status = fleet.replica(0).status()
    machine = fleet.machine(0)
    await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
    assert machine.closed
    disk = fleet.processes[0].env.files
    for _ in range(2):
        block = Superblocks(disk, "/data").load(GROUP)
        assert block is not None
        assert block.stage is Stage.TOMBSTONED
        assert block.last == status.last
        assert block.hard_state.term == status.term
        assert disk.list("/data/data") == []
        replica = fleet.replica(0)
        assert (replica.state, replica.status().term) == (State.TOMBSTONED, status.term)
        with pytest.raises(NotFound):
            await fleet.as_(0, fleet.call(0, b"k 1"))
        with pytest.raises(AlreadyPresent):
            await fleet.create(0, GROUP)
        await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
        fleet.processes[0].kill(power_cut=True)
        await fleet.restart(0)
        disk = fleet.processes[0].env.files
    assert (await fleet.as_(n := await fleet.leader(), fleet.call(n, b"k 1"))).result == b"2"


@story()
async def test_a_deletion_that_the_disk_refuses_is_told_and_can_be_made_again(fleet):
    await fleet.write(b"k 1")
    disk = fleet.processes[0].disk
    disk.faults.capacity_bytes = disk.used_bytes()
    with pytest.raises(OSError, match="space"):
        await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
    replica = fleet.replica(0)
    assert replica.state is State.FAILED
    assert "delete it again" in replica.status().error
    disk.faults.capacity_bytes = None
    term = replica.status().term
    await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
    assert (replica.state, replica.status().error) == (State.TOMBSTONED, "")
    assert replica.tombstone.superblock.votes, "nothing that it promised was lost"
    assert replica.status().term == term


@pytest.mark.parametrize("step", range(1, 12))
def test_a_crash_while_deleting_leaves_a_whole_replica_or_a_tombstone(step):
    @story(servers=1, groups=(GROUP, OTHER))
    async def tell(fleet):
        await fleet.write(b"k 1")
        await fleet.write(b"k 5", group=OTHER)
        process = fleet.processes[0]
        process.disk.die_after(step)
        deleted = fleet.spawn(0, fleet.host(0).delete_replica(GROUP))
        await fleet.until(lambda: deleted or not process.alive, "done or dead")
        done = process.alive
        process.kill()
        process.power_cut()
        await fleet.restart(0)
        state = fleet.replica(0).state
        assert state is State.TOMBSTONED or not done
        if state is State.TOMBSTONED:
            assert process.env.files.list("/data/data") == [OTHER]
        else:
            assert (await fleet.write(b"k 1")).result == b"2"
        assert (await fleet.write(b"k 1", group=OTHER)).result == b"6"

    tell()


@story()
async def test_deleting_ends_what_is_in_flight_with_an_unknown_outcome(fleet):
    leader = await fleet.leader()
    fleet.network.partition([f"s{leader}"], [f"s{n}" for n in range(3) if n != leader])
    answer = fleet.spawn(leader, fleet.call(leader, b"k 1"))
    reading = fleet.spawn(leader, fleet.replica(leader).read_point(None, 5000))
    await fleet.pass_ms(5)
    await fleet.as_(leader, fleet.host(leader).delete_replica(GROUP))
    await fleet.pass_ms(1)
    assert isinstance(answer[0], OutcomeUnknown)
    assert isinstance(reading[0], Unavailable)


# ---- damage ------------------------------------------------------------------------------------------


def stored(process, part):
    """Paths of the files of a process in one of its directories."""
    names = process.disk.names.seen
    return sorted(f"{d}/{n}" for d in names if d.startswith(f"/data/{part}") for n in names[d])


@pytest.mark.parametrize("part", ["superblock", "cmeta", "data/" + GROUP])
def test_a_damaged_file_fails_its_replica_which_then_neither_votes_nor_answers(part):
    @story(groups=(GROUP, OTHER))
    async def tell(fleet):
        await fleet.write(b"k 1")
        await fleet.write(b"k 1", group=OTHER)
        await fleet.settled()
        await fleet.as_(0, fleet.replica(0).flush())
        process = fleet.processes[0]
        process.kill()
        path = next(p for p in stored(process, part) if OTHER not in p)
        size = len(process.disk.names.get(path).content)
        for offset in range(0, size, 7):
            process.disk.flip_bit(path, offset)
        await fleet.restart(0)
        replica = fleet.replica(0)
        assert replica.state is State.FAILED
        assert replica.status().error
        assert path in stored(process, part), "files are kept"
        with pytest.raises(Unavailable):
            await fleet.as_(0, fleet.call(0, b"k 1"))
        before = fleet.loop.trace.counts["peer_sent"]
        batch = vote(GROUP, to=0)
        process.run(_receive, fleet.host(0), batch)
        await fleet.pass_ms(1)
        assert fleet.loop.trace.counts["peer_sent"] - before <= 1
        assert (await fleet.write(b"k 1", group=OTHER)).result == b"2"
        assert (await fleet.write(b"k 1")).result == b"2"

    tell()


async def _receive(host, batch):
    host._turns.receive(batch)


def vote(group, to, sender=1, term=1000, batch_to=None):
    request = RequestVote(
        sender=uuid_of(sender), to=uuid_of(to), term=term, hlc=1, last=OpId(999, 999)
    )
    addressee = uuid_of(to if batch_to is None else batch_to)
    return PeerBatch(uuid_of(sender), addressee, 1, ((group, request),))


@pytest.mark.parametrize("gone", ["superblock", "cmeta"])
def test_a_lost_file_is_damage_and_no_fresh_start(gone):
    @story()
    async def tell(fleet):
        await fleet.write(b"k 1")
        await fleet.settled()
        process = fleet.processes[0]
        process.kill()
        process.disk.mount().remove(f"/data/{gone}/{GROUP}")
        await fleet.restart(0)
        assert fleet.replica(0).state is State.FAILED
        with pytest.raises(AlreadyPresent):
            await fleet.create(0, GROUP)

    tell()


@story(groups=(GROUP, OTHER))
async def test_a_broken_log_fails_every_replica_and_the_process_lives(fleet):
    leader = await fleet.leader()
    await fleet.write(b"k 1")
    fleet.processes[leader].disk.faults.sync_eio_rate = 1.0
    answer = fleet.spawn(leader, fleet.call(leader, b"k 1", sequence=50))
    await fleet.until(lambda: answer, "an answer")
    assert isinstance(answer[0], OutcomeUnknown)
    assert [r.state for r in fleet.host(leader).all()] == [State.FAILED] * 2
    with pytest.raises(Unavailable, match="log is broken"):
        await fleet.create(leader, TabletId("d" * 32))
    others = [n for n in range(3) if n != leader]
    new = await fleet.leader(among=others)
    result = (await fleet.as_(new, fleet.call(new, b"k 1", sequence=50))).result
    assert result == b"2"
    assert fleet.processes[leader].alive


@story()
async def test_a_full_disk_throttles_and_room_on_it_heals(fleet):
    leader = await fleet.leader()
    assert (await fleet.write(b"k 1", sequence=1)).result == b"1"
    disk = fleet.processes[leader].disk
    disk.faults.capacity_bytes = disk.used_bytes()
    big = b"k 1" + b" " * 100_000
    full = False
    for n in range(2, 40):
        answer = fleet.spawn(leader, fleet.call(leader, big, sequence=n, timeout_ms=500))
        await fleet.until(lambda a=answer: a, "an answer")
        full = full or isinstance(answer[0], NyalaError)
    assert full
    assert not [r.error for n in range(3) for r in fleet.host(n).all() if r.error]
    await fleet.pass_ms(12_000)  # beyond the clock's ceiling, which has no room either
    disk.faults.capacity_bytes = None
    for n in range(2, 40):
        assert int((await fleet.write(big, sequence=n)).result) <= 39
    await fleet.settled()
    assert [fleet.machine(n).sums for n in range(3)] == [{"k": 39}] * 3


@story(servers=1)
async def test_a_clock_that_could_not_be_written_is_not_believed(fleet):
    leader = await fleet.leader()
    disk = fleet.processes[0].disk
    clock = fleet.processes[0].server.clock
    disk.faults.capacity_bytes = disk.used_bytes()
    fleet.processes[0].clock.jump(60_000_000)
    for _ in range(2):
        with pytest.raises(Unavailable, match="ceiling"):
            await fleet.as_(leader, fleet.replica(0).read_point(None, 1000))
        with pytest.raises(Unavailable, match="ceiling"):
            await fleet.as_(leader, fleet.call(leader, b"k 1"))
    named = "clock ceiling cannot be saved: [Errno 28]"
    assert fleet.host(0).sick.startswith(named)
    status = fleet.replica(0).status()
    assert (status.state, status.error.startswith(named)) == (State.RUNNING, True)
    disk.faults.capacity_bytes = None
    at = await fleet.as_(leader, fleet.replica(0).read_point(None, 1000))
    assert at < int(fleet.processes[0].env.files.read("/data/hybrid_clock").split()[0])
    assert clock.peek() >= at
    assert fleet.host(0).sick == fleet.replica(0).status().error == ""
    assert (await fleet.write(b"k 1")).stamp > at


@story()
async def test_a_write_that_a_new_leader_cannot_accept_ends_at_its_deadline(fleet):
    old = await fleet.leader()
    others = [n for n in range(3) if n != old]
    fleet.processes[old].kill()
    for n in others:
        fleet.processes[n].delays.disk_us = 50_000
    await fleet.until(lambda: any(fleet.replica(n).is_leader for n in others), "elected")
    new = next(n for n in others if fleet.replica(n).is_leader)
    fleet.network.cut([f"s{n}" for n in others if n != new], [f"s{new}"])
    answer = fleet.spawn(new, fleet.call(new, b"k 1", timeout_ms=100))
    await fleet.pass_ms(200)
    assert isinstance(answer[0], Unavailable)
    assert fleet.machine(new).runs == 0


# ---- peers -------------------------------------------------------------------------------------------


@story()
async def test_a_batch_for_another_server_or_of_an_unknown_group_is_dropped(fleet):
    await fleet.write(b"k 1")
    await fleet.settled()
    term = fleet.replica(0).status().term
    host = fleet.host(0)
    clock = fleet.processes[0].server.clock
    far = clock.peek() + (1 << 40)
    lost = vote(GROUP, to=0, batch_to=2)
    fleet.processes[0].run(_receive, host, PeerBatch(lost.sender, lost.to, far, lost.messages))
    fleet.processes[0].run(_receive, host, vote(OTHER, to=0))
    await fleet.pass_ms(20)
    assert clock.peek() < far, "not for this server: nothing of it is believed"
    assert fleet.replica(0).status().term == term
    shown = fleet.processes[0].server.metrics.registry.get_sample_value
    assert shown("nyala_replica_refused_messages_total", {"why": "destination"}) == 1
    assert shown("nyala_replica_refused_messages_total", {"why": "group"}) == 1


@story()
async def test_a_message_that_contradicts_itself_is_dropped_and_nothing_changes(fleet):
    await fleet.write(b"k 1")
    await fleet.settled()
    leader = await fleet.leader()
    follower = (leader + 1) % 3
    status = fleet.replica(follower).status()
    bad = AppendEntries(
        sender=uuid_of(leader),
        to=uuid_of(follower),
        term=status.term,
        previous=OpId(status.term, 2),
        entries=(fleet.replica(leader).node.core.log.slice(1, 1)[0],),
        commit=2,
    )
    batch = PeerBatch(uuid_of(leader), uuid_of(follower), 1, ((GROUP, bad),))
    fleet.processes[follower].run(_receive, fleet.host(follower), batch)
    await fleet.pass_ms(50)
    assert fleet.replica(follower).state is State.RUNNING
    assert fleet.replica(follower).status().last == status.last


@story()
async def test_every_batch_moves_the_clock_before_it_is_looked_at(fleet):
    leader = await fleet.leader()
    fleet.processes[leader].clock.jump(60_000_000)
    outcome = await fleet.write(b"k 1")
    await fleet.settled()
    for n in range(3):
        assert fleet.processes[n].server.clock.peek() >= outcome.stamp


@story()
async def test_a_stopped_host_sends_nothing_and_leaves_everything_durable(fleet):
    await fleet.write(b"k 3")
    await fleet.settled()
    for n in range(3):
        machine = fleet.machine(n)
        await fleet.as_(n, fleet.host(n).close())
        assert machine.closed
    before = fleet.loop.trace.counts["peer_sent"]
    await fleet.pass_ms(500)
    assert fleet.loop.trace.counts["peer_sent"] == before
    with pytest.raises(Unavailable):
        await fleet.create(0, OTHER)
    for n in range(3):
        fleet.processes[n].kill(power_cut=True)
        await fleet.restart(n)
    assert (await fleet.write(b"k 1", sequence=70)).result == b"4"
    assert fleet.replica(0).node.core.hard != HardState()


@story()
async def test_leadership_can_be_handed_over(fleet):
    leader = await fleet.leader()
    to = (leader + 1) % 3
    await fleet.write(b"k 1")
    await fleet.settled()
    fleet.processes[leader].run(_transfer, fleet.replica(leader), uuid_of(to))
    await fleet.until(lambda: fleet.leading() == to, "handed over")
    assert (await fleet.write(b"k 1")).result == b"2"


async def _transfer(replica, to):
    replica.transfer(to)
