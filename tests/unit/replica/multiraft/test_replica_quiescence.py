"""Quiescent groups on hosts: no messages are sent for them, and every relevant event wakes them."""

import pytest
from msgspec.structs import replace

from nyala.common.ids import TabletId
from nyala.common.options import Options
from nyala.raft.messages import AppendEntries, AppendReply, PeerBatch
from nyala.replica.status import State
from tests.enough import enough
from tests.unit.replica.support.replica_support import GROUP, record_batches, scenario, uuid_of

MANY = [TabletId(f"{n:032x}") for n in range(100, 130)]
ELECTION_MS = 500
TWO_TIMEOUTS_MS = 2 * 2 * ELECTION_MS  # a timeout is drawn from [500, 1000)


def sleeping(fleet, among=None):
    """Return groups that are quiescent on all of these servers."""
    return [
        g
        for g in (r.group for r in fleet.host((among or fleet.alive())[0]).all())
        if all(
            (node := fleet.replica(n, g).node) is not None and node.quiesced
            for n in among or fleet.alive()
        )
    ]


async def wait_quiesced(fleet, groups, among=None):
    """Wait until all these groups are quiescent."""
    await fleet.until(
        lambda: set(groups) <= set(sleeping(fleet, among)), "all groups are quiescent"
    )


def terms(fleet, groups=MANY):
    return [fleet.replica(n, g).node.term for g in groups for n in fleet.alive()]


def leaders(fleet, groups=MANY):
    return {g: fleet.leading(g) for g in groups}


async def latest_batch(fleet, number):
    """Return the next batch that a server sends: with its present incarnation and stopped count."""
    received: list[PeerBatch] = []
    record_batches(fleet.processes[number], received)
    await fleet.until(lambda: received, "a keepalive")
    return received[-1]


# ---- idle --------------------------------------------------------------------------------------------


@pytest.mark.full
@scenario(groups=MANY, max_time_s=700)
async def test_idle_groups_stay_quiesced_ten_minutes_without_messages_elections_or_ticks(fleet):
    await wait_quiesced(fleet, MANY)
    assert len(set(leaders(fleet).values())) > 1
    before = (terms(fleet), [fleet.replica(0, g).node.core.ticks for g in MANY])
    await fleet.pass_ms(3000)
    sent = fleet.loop.trace.counts["peer_sent"]
    await fleet.pass_ms(600_000)
    assert (terms(fleet), [fleet.replica(0, g).node.core.ticks for g in MANY]) == before
    signs = 6 * 10 * 600  # pairs of servers, each way, by heartbeats
    assert signs * 0.9 < fleet.loop.trace.counts["peer_sent"] - sent < signs * 1.1
    assert fleet.replica(0, MANY[0]).status().quiesced
    assert fleet.replica(0, MANY[0]).state is State.RUNNING
    metrics = fleet.processes[0].server.metrics.registry
    assert metrics.get_sample_value("nyala_replica_quiesced_groups") == len(MANY)
    assert sleeping(fleet) == MANY


@scenario(groups=MANY[:3], options=Options(wal_segment_mb=1, raft_quiesce_ms=0))
async def test_disabled_quiescence_option_keeps_groups_active(fleet):
    await fleet.pass_ms(10_000)
    assert sleeping(fleet) == []


@scenario(groups=MANY)
async def test_write_or_read_wakes_only_its_group_which_quiesces_again(fleet):
    await wait_quiesced(fleet, MANY)
    group = MANY[3]
    assert (await fleet.write(b"k 1", group=group)).result == b"1"
    assert [g for g in MANY if g not in sleeping(fleet)] == [group]
    await wait_quiesced(fleet, MANY)
    number = await fleet.leader(group)
    before = fleet.replica(number, group).node.core.round
    at = await fleet.as_(number, fleet.replica(number, group).read_point(None, 1000))
    assert at > 0
    assert fleet.replica(number, group).node.core.round > before, "a read round was requested"
    assert [g for g in MANY if g not in sleeping(fleet)] == [group]
    await wait_quiesced(fleet, MANY)
    assert {fleet.machine(n, group).sums["k"] for n in range(3)} == {1}


@scenario()
async def test_flush_of_quiesced_group_releases_log(fleet):
    for _ in range(5):
        await fleet.write(b"k 1")
    await wait_quiesced(fleet, [GROUP])
    await fleet.pass_ms(2000)
    wal = fleet.host(1).wal
    anchors, set_anchor = [], wal.set_anchor

    def note(group, first_needed_index, *args, **more):
        anchors.append((group, first_needed_index))
        set_anchor(group, first_needed_index, *args, **more)

    wal.set_anchor = note
    assert await fleet.as_(1, fleet.replica(1).flush())
    await fleet.pass_ms(2000)
    assert anchors[-1] == (GROUP, fleet.replica(1).status().last.index + 1)
    assert sleeping(fleet) == [GROUP]


# ---- servers that crash, stop, return -----------------------------------------------------------------


@scenario(groups=MANY)
async def test_groups_of_killed_server_have_new_leaders_within_two_election_timeouts(fleet):
    await wait_quiesced(fleet, MANY)
    led = leaders(fleet)
    fleet.processes[0].kill()
    led_by_victim = [g for g in MANY if led[g] == 0]
    assert led_by_victim
    await fleet.until(
        lambda: all(fleet.leading(g, [1, 2]) is not None for g in led_by_victim),
        "new leaders",
        TWO_TIMEOUTS_MS,
    )
    assert {g: n for g, n in leaders(fleet).items() if g not in led_by_victim} == {
        g: n for g, n in led.items() if g not in led_by_victim
    }
    await wait_quiesced(fleet, MANY)  # permanently without the dead server
    before = terms(fleet)
    await fleet.pass_ms(60_000)
    assert terms(fleet) == before
    await fleet.write(b"k 1", group=led_by_victim[0])
    await wait_quiesced(fleet, MANY)
    await fleet.restart(0)
    await fleet.until(
        lambda: (
            fleet.replica(0, led_by_victim[0]).node.last
            == fleet.replica(1, led_by_victim[0]).node.last
            and set(sleeping(fleet)) == set(MANY)
        ),
        "the member has caught up, and all groups are quiescent",
    )


@scenario(groups=MANY)
async def test_restart_wakes_quiesced_groups_and_their_leaders_change(
    fleet,
):
    await wait_quiesced(fleet, MANY)
    led = leaders(fleet)
    others = [g for g in MANY if led[g] != 0]
    before = terms(fleet, others)
    fleet.processes[0].kill()
    await fleet.restart(0)  # sooner than its absence is detected
    await fleet.until(
        lambda: all(fleet.leading(g) is not None for g in MANY), "leaders", TWO_TIMEOUTS_MS
    )
    await wait_quiesced(fleet, MANY)
    assert terms(fleet, others) == before, "groups keep a leader that was not restarted"


@scenario(groups=MANY)
async def test_pause_below_election_timeout_is_unnoticed_and_longer_one_causes_election(
    fleet,
):
    await wait_quiesced(fleet, MANY)
    before = terms(fleet)
    fleet.processes[0].pause()
    await fleet.pass_ms(ELECTION_MS * 0.6)
    fleet.processes[0].resume()
    await fleet.pass_ms(3000)
    assert terms(fleet) == before
    assert sleeping(fleet) == MANY
    led = leaders(fleet)
    fleet.processes[0].pause()
    led_by_first = [g for g in MANY if led[g] == 0]
    await fleet.until(
        lambda: all(fleet.leading(g, [1, 2]) is not None for g in led_by_first),
        "led",
        TWO_TIMEOUTS_MS,
    )
    await fleet.pass_ms(5000)
    fleet.processes[0].resume()
    await fleet.until(
        lambda: not any(fleet.replica(0, g).is_leader for g in led_by_first),
        "the old leader has stepped down",
    )
    await wait_quiesced(fleet, MANY)


@scenario(groups=MANY)
async def test_partitioned_follower_delays_quiescence_then_is_skipped_then_caught_up(fleet):
    await wait_quiesced(fleet, MANY)
    group = MANY[0]
    leader = await fleet.leader(group)
    cut = next(n for n in range(3) if n != leader)
    rest = [n for n in range(3) if n != cut]
    fleet.network.partition([f"s{cut}"], [f"s{n}" for n in rest])
    assert (await fleet.write(b"k 1", group=group)).result == b"1"
    await fleet.pass_ms(1000)
    assert group not in sleeping(fleet, rest), "the group waits for the lagging member"
    await wait_quiesced(fleet, MANY, rest)
    assert fleet.replica(cut, group).node.last < fleet.replica(leader, group).node.last
    fleet.network.heal()
    await wait_quiesced(fleet, MANY)
    assert fleet.replica(cut, group).node.last == fleet.replica(leader, group).node.last
    assert fleet.machine(cut, group).sums == {"k": 1}


@scenario(groups=MANY)
async def test_follower_partitioned_from_leader_only_does_not_depose_it(fleet):
    await wait_quiesced(fleet, MANY)
    before, led = terms(fleet), leaders(fleet)
    fleet.network.partition(["s0"], ["s1"])
    await fleet.pass_ms(20_000)
    assert leaders(fleet) == led
    fleet.network.heal()
    await wait_quiesced(fleet, MANY)
    assert terms(fleet) == before


@scenario(groups=MANY)
async def test_leader_without_contact_steps_down(fleet):
    await wait_quiesced(fleet, MANY)
    led = leaders(fleet)
    fleet.network.cut(["s1", "s2"], ["s0"])
    await fleet.until(lambda: not any(fleet.replica(0, g).is_leader for g in MANY), "deposed", 5000)
    await fleet.until(
        lambda: all(fleet.leading(g, [1, 2]) is not None for g in MANY), "led by others", 5000
    )
    assert any(n == 0 for n in led.values())


@scenario(groups=MANY)
async def test_message_loss_neither_blocks_quiescence_nor_deposes_leaders(fleet):
    fleet.network.faults.loss_rate = 0.15
    await wait_quiesced(fleet, MANY)
    before = terms(fleet)
    await fleet.pass_ms(60_000)
    changed = sum(now != then for now, then in zip(terms(fleet), before, strict=True))
    enough(
        changed <= len(before) // 10, f"{changed} replicas had elections for lost messages alone"
    )
    for group in MANY[:5]:
        await fleet.write(b"k 1", group=group)
    await wait_quiesced(fleet, MANY)


# ---- replicas that end -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["fail", "delete"])
def test_exited_leader_replica_wakes_only_its_group(end):
    @scenario(groups=MANY)
    async def steps(fleet):
        await wait_quiesced(fleet, MANY)
        await fleet.pass_ms(3000)
        group = MANY[7]
        old = await fleet.leader(group)
        rest = [n for n in range(3) if n != old]
        before = terms(fleet, [g for g in MANY if g != group])
        if end == "fail":
            fleet.replica(old, group).fail(OSError("a broken machine"))
        else:
            await fleet.as_(old, fleet.host(old).delete_replica(group))
        await fleet.until(
            lambda: fleet.leading(group, rest) is not None, "a new leader", TWO_TIMEOUTS_MS
        )
        assert terms(fleet, [g for g in MANY if g != group]) == before
        assert [g for g in MANY if g not in sleeping(fleet, rest)] == [group]
        await fleet.write(b"k 1", group=group)

    steps()


@scenario(groups=MANY)
async def test_failed_follower_replica_is_detected_by_leader(fleet):
    await wait_quiesced(fleet, MANY)
    await fleet.pass_ms(3000)
    group = MANY[7]
    leader = await fleet.leader(group)
    failed = (leader + 1) % 3
    fleet.replica(failed, group).fail(OSError("a broken machine"))
    await fleet.pass_ms(1000)
    node = fleet.replica(leader, group).node
    assert not node.quiesced
    silent = {p.uuid: p.ticks_silent for p in node.status().peers}
    assert silent[uuid_of(failed)] > 10
    assert [g for g in MANY if g not in sleeping(fleet, [leader])] == [group]
    rest = [n for n in range(3) if n != failed]
    await wait_quiesced(fleet, MANY, rest)
    await fleet.pass_ms(20_000)
    assert sleeping(fleet, rest) == MANY, "the groups stay quiescent without the failed replica"
    await fleet.write(b"k 1", group=group)
    fleet.processes[failed].kill()
    await fleet.restart(failed)
    await wait_quiesced(fleet, MANY)
    applied = [fleet.replica(n, group).status().applied for n in range(3)]
    assert len(set(applied)) == 1, "the returned replica has caught up"


@scenario(groups=MANY)
async def test_lost_exit_announcements_are_detected_by_count(fleet):
    await wait_quiesced(fleet, MANY)
    group = MANY[7]
    old = await fleet.leader(group)
    rest = [n for n in range(3) if n != old]
    transport = fleet.processes[old].server.transport
    send = transport.send
    transport.send = lambda address, batch: send(address, replace(batch, stopped_groups=()))
    fleet.replica(old, group).fail(OSError("a broken machine"))
    await fleet.until(
        lambda: fleet.leading(group, rest) is not None, "a new leader", TWO_TIMEOUTS_MS
    )
    await wait_quiesced(fleet, [g for g in MANY if g != group])


@scenario(groups=MANY)
async def test_failed_log_leaves_no_group_without_leader(fleet):
    await wait_quiesced(fleet, MANY)
    led = leaders(fleet)
    led_by_first = [g for g in MANY if led[g] == 0]
    fleet.replica(0, MANY[0]).context.disk_failed(OSError("the disk is gone"))
    await fleet.until(
        lambda: all(fleet.leading(g, [1, 2]) is not None for g in led_by_first),
        "led",
        TWO_TIMEOUTS_MS,
    )
    await fleet.write(b"k 1", group=led_by_first[0])
    assert all(fleet.replica(0, g).state is State.FAILED for g in MANY)


# ---- late and wrong messages ---------------------------------------------------------------------------


@scenario()
async def test_outdated_message_does_not_cause_quiescence(fleet):
    leader = await fleet.leader()
    await wait_quiesced(fleet, [GROUP])
    follower = (leader + 1) % 3
    node = fleet.replica(follower).node
    account = await latest_batch(fleet, leader)
    sender, to = uuid_of(leader), uuid_of(follower)
    common = {"sender": sender, "to": to, "term": node.term, "hlc": 1}
    heartbeat = AppendEntries(**common, previous=node.last, commit=node.last.index)
    offer = AppendEntries(**common, previous=node.last, commit=node.last.index, quiesce=True)
    late = [
        {"incarnation": account.incarnation - 1, "stopped_count": account.stopped_count},
        {"incarnation": account.incarnation, "stopped_count": account.stopped_count - 1},
        {},
    ]
    fleet.network.partition(["s0", "s1"], ["s0", "s1", "s2"])
    for message in late:
        fleet.deliver(follower, PeerBatch(sender, to, 1, ((GROUP, heartbeat),), **message))
        await fleet.pass_ms(1)
        assert not node.quiesced
        fleet.deliver(follower, PeerBatch(sender, to, 1, ((GROUP, offer),), **message))
        await fleet.pass_ms(1)
        assert not node.quiesced, message
    message = {"incarnation": account.incarnation, "stopped_count": account.stopped_count}
    batch = PeerBatch(sender, to, 1, ((GROUP, offer),), **message)
    fleet.deliver(follower, batch)
    await fleet.pass_ms(1)
    assert node.quiesced, "the latest message causes quiescence"


@scenario()
async def test_answer_of_earlier_incarnation_does_not_quiesce_leader(fleet):
    leader = await fleet.leader()
    await wait_quiesced(fleet, [GROUP])
    other = (leader + 1) % 3
    node = fleet.replica(leader).node
    account = await latest_batch(fleet, other)
    fleet.processes[other].kill()
    await fleet.until(lambda: not node.quiesced, "the missing messages are detected")
    answer = AppendReply(
        sender=uuid_of(other), to=uuid_of(leader), term=node.term, hlc=1, success=True,
        match=node.last.index, hint=node.last, quiesce=True,
    )  # fmt: skip
    identity = {"incarnation": account.incarnation - 1, "stopped_count": account.stopped_count}
    batch = PeerBatch(uuid_of(other), uuid_of(leader), 1, ((GROUP, answer),), **identity)
    for _ in range(10):
        await fleet.pass_ms(100)
        fleet.deliver(leader, batch)
        assert not node.quiesced
