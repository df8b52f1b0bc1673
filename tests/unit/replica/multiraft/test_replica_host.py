"""The host: many groups, handling of messages, the clock and shutdown."""

import pytest

from nyala.common.errors import (
    Unavailable,
)
from nyala.common.ids import OpId, TabletId
from nyala.raft.messages import AppendEntries, HardState, PeerBatch
from nyala.raft.status import Role
from nyala.replica.status import State
from tests.unit.replica.support.by_hand import OTHER, vote
from tests.unit.replica.support.replica_support import GROUP, scenario, uuid_of

MANY = [TabletId(f"{n:032x}") for n in range(100, 120)]


@pytest.mark.row("S4.28")
@scenario(groups=MANY)
async def test_groups_of_one_server_have_separate_logs_and_leaders(fleet):
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


@scenario(groups=MANY)
async def test_heartbeats_of_all_groups_share_a_message(fleet):
    for group in MANY:
        await fleet.leader(group)
    counts = fleet.loop.trace.counts
    before = counts["peer_sent"]
    await fleet.pass_ms(1000)
    # 20 groups x 2 followers x 10 heartbeats and their answers would be 800 if each went alone
    assert 0 < counts["peer_sent"] - before < 300


@scenario(start=False)
async def test_group_is_running_after_leader_commits_in_its_term(fleet):
    for number in range(3):
        await fleet.boot(number)
    await fleet.create(0, GROUP)
    assert fleet.replica(0).state is State.CONFIGURING
    await fleet.pass_ms(3000)
    assert fleet.replica(0).state is State.CONFIGURING, "one of three cannot elect a leader"
    assert fleet.replica(0).status().role in (Role.CANDIDATE, Role.FOLLOWER)
    await fleet.create(1, GROUP)
    leader = await fleet.leader()
    status = fleet.replica(leader).status()
    assert status.role is Role.LEADER
    assert status.commit >= 1
    follower = 1 - leader
    await fleet.until(
        lambda: fleet.replica(follower).state is State.RUNNING,
        "the follower knows that its group runs",
    )
    assert fleet.replica(follower).status().leader == uuid_of(leader)


@scenario()
async def test_write_waits_until_new_leader_has_committed_in_its_term(fleet):
    old = await fleet.leader()
    others = [n for n in range(3) if n != old]
    fleet.processes[old].kill()
    while not any(fleet.replica(n).is_leader for n in others):
        await fleet.loop.delay(50)
    new = next(n for n in others if fleet.replica(n).is_leader)
    assert fleet.replica(new).state is State.CONFIGURING
    assert (await fleet.as_(new, fleet.call(new, b"k 1"))).result == b"1"


@scenario()
async def test_write_to_new_leader_without_commit_ends_at_deadline(fleet):
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


@scenario()
async def test_batch_for_other_server_or_unknown_group_is_dropped(fleet):
    await fleet.write(b"k 1")
    await fleet.settled()
    term = fleet.replica(0).status().term
    clock = fleet.processes[0].server.clock
    far = clock.peek() + (1 << 40)
    lost = vote(GROUP, to=0, batch_to=2)
    fleet.deliver(0, PeerBatch(lost.sender, lost.to, far, lost.messages))
    fleet.deliver(0, vote(OTHER, to=0))
    await fleet.pass_ms(20)
    assert clock.peek() < far, "a batch for another server does not move the clock"
    assert fleet.replica(0).status().term == term
    shown = fleet.processes[0].server.metrics.registry.get_sample_value
    assert shown("nyala_replica_refused_messages_total", {"why": "destination"}) == 1
    assert shown("nyala_replica_refused_messages_total", {"why": "group"}) == 1


@scenario()
async def test_contradictory_append_entries_is_dropped(fleet):
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
    fleet.deliver(follower, batch)
    await fleet.pass_ms(50)
    assert fleet.replica(follower).state is State.RUNNING
    assert fleet.replica(follower).status().last == status.last


@scenario()
async def test_message_batch_updates_clock_before_processing(fleet):
    leader = await fleet.leader()
    fleet.processes[leader].clock.jump(60_000_000)
    outcome = await fleet.write(b"k 1")
    await fleet.settled()
    for n in range(3):
        assert fleet.processes[n].server.clock.peek() >= outcome.stamp


@scenario()
async def test_stopped_host_sends_nothing_and_its_state_is_durable(fleet):
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


@scenario()
async def test_leadership_transfer_succeeds(fleet):
    leader = await fleet.leader()
    to = (leader + 1) % 3
    await fleet.write(b"k 1")
    await fleet.settled()
    fleet.processes[leader].run(_transfer, fleet.replica(leader), uuid_of(to))
    await fleet.until(lambda: fleet.leading() == to, "handed over")
    assert (await fleet.write(b"k 1")).result == b"2"


async def _transfer(replica, to):
    replica.transfer(to)


@scenario()
async def test_failing_tick_does_not_end_ticks(fleet):
    leader = await fleet.leader()
    failures: list[int] = []
    for number in range(3):
        clocks = fleet.replica(number).context.clocks
        update = clocks.update

        def fail_once(update=update, number=number):
            if failures.count(number):
                update()
            else:
                failures.append(number)
                raise KeyError("a server that is not known")

        clocks.update = fail_once
    await fleet.until(lambda: len(failures) == 3, "each server had an error in a tick")
    fleet.forgive(KeyError)
    fleet.processes[leader].kill()
    assert await fleet.leader() != leader
