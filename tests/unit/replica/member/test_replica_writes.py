"""Writes through real cores, logs and state machines: acknowledged once, by a majority, across failovers."""

import asyncio
import gc
import sys

import pytest

from nyala.common.errors import (
    InvalidArgument,
    NotLeader,
    OutcomeUnknown,
    SessionExpired,
    Throttled,
    TooLarge,
    Unavailable,
)
from nyala.common.ids import TabletId
from nyala.common.options import Options
from nyala.replica.member.applier import DELAY_ENTRIES
from nyala.replica.status import State
from tests.unit.replica.support.replica_support import BOOM, CLIENT, GROUP, scenario, uuid_of

SMALL = Options(wal_segment_mb=1, flush_bytes=60, client_result_ttl_s=600)


@scenario()
async def test_write_has_one_timestamp_on_all_replicas(fleet):
    outcome = await fleet.write(b"k 5")
    assert (outcome.result, outcome.duplicate) == (b"5", False)
    again = await fleet.write(b"k 2")
    assert again.result == b"7"
    assert again.stamp > outcome.stamp
    await fleet.settled()
    assert [fleet.machine(n).sums for n in range(3)] == [{"k": 7}] * 3
    stamps = {fleet.replica(n).status().applied_stamp for n in range(3)}
    assert stamps == {again.stamp}


@pytest.mark.row("S4.30")
@scenario()
async def test_follower_refuses_write_and_names_leader(fleet):
    leader = await fleet.leader()
    follower = (leader + 1) % 3
    await fleet.until(
        lambda: fleet.replica(follower).state is State.RUNNING,
        "the follower knows that its group runs",
    )
    with pytest.raises(NotLeader) as caught:
        await fleet.as_(follower, fleet.call(follower, b"k 1"))
    assert caught.value.leader == uuid_of(leader)
    assert caught.value.address == f"s{leader}:7"
    assert fleet.machine(follower).runs == 0


@pytest.mark.row("S4.30")
@scenario()
async def test_write_is_acknowledged_after_majority_has_it(fleet):
    leader = await fleet.leader()
    others = [n for n in range(3) if n != leader]
    fleet.network.cut([f"s{n}" for n in others], [f"s{leader}"])  # answers are lost
    answer = fleet.spawn(leader, fleet.call(leader, b"k 1", sequence=1))
    await fleet.pass_ms(200)
    assert answer == []
    assert fleet.machine(leader).runs == 0
    assert fleet.replica(leader).status().durable == fleet.replica(leader).status().last.index
    fleet.network.heal()
    await fleet.until(lambda: answer, "an answer")
    assert answer[0].result == b"1"


@pytest.mark.row("S4.2")
@scenario()
async def test_acknowledged_writes_survive_power_failure_of_all_servers(fleet):
    acknowledged = 0
    for round_ in range(4):
        acknowledged = int((await fleet.write(b"k 1", sequence=round_ + 1)).result)
        for process in fleet.processes:
            process.kill(power_cut=True)
        for number in range(3):
            await fleet.restart(number)
    await fleet.leader()
    await fleet.settled()
    assert acknowledged == 4
    assert [fleet.machine(n).sums for n in range(3)] == [{"k": 4}] * 3


@pytest.mark.row("S4.2")
@scenario(servers=1)
async def test_acknowledgement_waits_for_log_sync(fleet):
    await fleet.write(b"k 1")
    fleet.processes[0].delays.disk_us = 3_000_000
    answer = fleet.spawn(0, fleet.call(0, b"k 1"))
    await fleet.pass_ms(50)
    assert answer == []
    assert fleet.machine(0).sums == {"k": 1}
    fleet.processes[0].kill(power_cut=True)
    fleet.processes[0].delays.disk_us = 300
    await fleet.restart(0)
    await fleet.leader()
    await fleet.settled()
    assert fleet.machine(0).sums["k"] in (1, 2)


@pytest.mark.row("S4.2")
@scenario()
async def test_follower_acknowledgement_is_durable(fleet):
    leader = await fleet.leader()
    others = [n for n in range(3) if n != leader]
    for n in others:
        fleet.processes[n].delays.disk_us = 30_000_000
    answer = fleet.spawn(leader, fleet.call(leader, b"k 1", sequence=1, timeout_ms=60_000))
    await fleet.pass_ms(300)
    assert answer == []
    assert fleet.replica(leader).is_leader, "heartbeats are answered meanwhile"
    last = fleet.replica(leader).status().last
    assert {fleet.replica(n).status().last for n in others} == {last}, (
        "both followers have received the entry"
    )


# ---- exactly once ------------------------------------------------------------------------------------


@scenario()
async def test_retry_across_failover_takes_effect_once(fleet):
    leader = await fleet.leader()
    first = await fleet.write(b"k 1", sequence=1)
    fleet.processes[leader].kill()
    second = await fleet.write(b"k 1", sequence=1)
    assert second.duplicate
    assert (second.result, second.stamp) == (first.result, first.stamp)
    await fleet.settled()
    assert {n: fleet.machine(n).sums for n in fleet.alive()} == {n: {"k": 1} for n in fleet.alive()}


@scenario(options=SMALL)
async def test_retry_after_flush_and_power_failure_takes_effect_once(fleet):
    first = await fleet.write(b"k 1", sequence=1)
    for n in range(2, 60):
        await fleet.write(b"k 1", sequence=n)
    await fleet.until(
        lambda: all(fleet.replica(n).status().flush_op.index > 30 for n in range(3)), "flushes"
    )
    for process in fleet.processes:
        process.kill(power_cut=True)
    for number in range(3):
        await fleet.restart(number)
        assert fleet.machine(number).flush_point.op.index > 30
    again = await fleet.write(b"k 1", sequence=1)
    assert again.duplicate
    assert again.stamp == first.stamp
    await fleet.settled()
    assert [fleet.machine(n).sums for n in range(3)] == [{"k": 59}] * 3


@scenario()
async def test_concurrent_attempts_take_effect_once_and_are_both_answered(fleet):
    leader = await fleet.leader()
    one, two, other = await asyncio.gather(
        fleet.as_(leader, fleet.call(leader, b"k 1", sequence=1)),
        fleet.as_(leader, fleet.call(leader, b"k 1", sequence=1)),
        fleet.as_(leader, fleet.call(leader, b"k 1", sequence=2)),
    )
    assert (one.result, two.result, other.result) == (b"1", b"1", b"2")
    assert (one.duplicate, two.duplicate) == (False, False), "both attempts wait for one entry"
    assert one.stamp == two.stamp
    assert max(fleet.machine(leader).groups) == 2, "one entry for each number, in one group"


@scenario()
async def test_same_sequence_with_other_bytes_is_refused(fleet):
    await fleet.write(b"k 1", sequence=1)
    with pytest.raises(InvalidArgument, match="other bytes"):
        await fleet.write(b"k 2", sequence=1)
    assert (await fleet.write(b"k 1", sequence=2)).result == b"2"


@scenario(options=Options(wal_segment_mb=1, client_result_ttl_s=5))
async def test_expired_sequence_is_refused_and_not_executed_again(fleet):
    await fleet.write(b"k 1", sequence=1)
    await fleet.pass_ms(6000)
    with pytest.raises(SessionExpired):
        await fleet.write(b"k 1", sequence=1)
    assert (await fleet.write(b"k 1", sequence=2)).result == b"2"


@scenario()
async def test_acknowledged_sequence_is_refused_and_not_executed_again(fleet):
    await fleet.write(b"k 1", sequence=1)
    await fleet.write(b"k 1", sequence=2, first=2)
    with pytest.raises(SessionExpired):
        await fleet.write(b"k 1", sequence=1)
    assert (await fleet.write(b"k 1", sequence=2, first=2)).result == b"2"


# ---- unknown outcomes --------------------------------------------------------------------------------


@scenario()
async def test_lost_leadership_gives_unknown_outcome_and_retry_resolves_it(fleet):
    leader = await fleet.leader()
    others = [n for n in range(3) if n != leader]
    fleet.network.partition([f"s{leader}"], [f"s{n}" for n in others])
    answer = fleet.spawn(leader, fleet.call(leader, b"k 1", sequence=1, timeout_ms=60_000))
    new = await fleet.leader(among=others)
    await fleet.until(lambda: answer, "the old leader steps down")
    assert isinstance(answer[0], OutcomeUnknown)
    assert "leadership was lost" in str(answer[0])
    assert (await fleet.as_(new, fleet.call(new, b"k 1", sequence=1))).result == b"1"
    fleet.network.heal()
    await fleet.settled()
    assert [fleet.machine(n).sums for n in range(3)] == [{"k": 1}] * 3


@scenario()
async def test_payload_of_failed_write_is_freed_with_its_error(fleet):
    leader = await fleet.leader()
    fleet.network.cut([f"s{n}" for n in range(3) if n != leader], [f"s{leader}"])
    payload = bytes(bytearray(b"k 1"))
    gc.collect()
    gc.disable()
    try:
        before = sys.getrefcount(payload)
        answers = [
            fleet.spawn(leader, fleet.call(leader, payload, sequence=1, timeout_ms=100))
            for _ in range(2)  # the second one joins the first
        ]
        await fleet.pass_ms(200)
        assert all(isinstance(a.pop(), OutcomeUnknown) for a in answers)
        await fleet.pass_ms(100)
        assert sys.getrefcount(payload) == before
    finally:
        gc.enable()


@scenario()
async def test_deadline_gives_unknown_outcome_and_write_continues(fleet):
    leader = await fleet.leader()
    others = [n for n in range(3) if n != leader]
    fleet.network.cut([f"s{n}" for n in others], [f"s{leader}"])
    answer = fleet.spawn(leader, fleet.call(leader, b"k 1", sequence=1, timeout_ms=100))
    await fleet.pass_ms(200)
    assert isinstance(answer[0], OutcomeUnknown)
    assert "deadline" in str(answer[0])
    fleet.network.heal()
    assert (await fleet.write(b"k 1", sequence=1)).result == b"1"


@scenario()
async def test_write_committed_before_step_down_is_acknowledged(fleet):
    leader = await fleet.leader()
    fleet.processes[leader].delays.apply_us = 2_000_000
    answer = fleet.spawn(leader, fleet.call(leader, b"k 1", sequence=1, timeout_ms=60_000))
    last = fleet.replica(leader).status().last.index
    node = fleet.replica(leader).node
    await fleet.until(lambda: node.commit_index > last, "committed")
    assert answer == []
    others = [n for n in range(3) if n != leader]
    fleet.network.partition([f"s{leader}"], [f"s{n}" for n in others])
    await fleet.until(lambda: not node.is_leader, "stepped down")
    await fleet.until(lambda: answer, "applied")
    assert answer[0].result == b"1"


# ---- limits and bad input ----------------------------------------------------------------------------


@scenario(options=Options(wal_segment_mb=1, write_queue_bytes=2048, write_max_bytes=1024))
async def test_writes_in_flight_are_bounded(fleet):
    leader = await fleet.leader()
    others = [n for n in range(3) if n != leader]
    fleet.network.cut([f"s{n}" for n in others], [f"s{leader}"])
    big = b"k 1" + b" " * 1500
    answer = fleet.spawn(leader, fleet.call(leader, big, sequence=1))
    await fleet.pass_ms(1)
    with pytest.raises(Throttled) as caught:
        await fleet.as_(leader, fleet.call(leader, big, sequence=2))
    assert int(caught.value.details["retry_after_ms"]) > 0
    fleet.network.heal()
    await fleet.until(lambda: answer, "an answer")
    outcome = await fleet.write(big, sequence=2)
    assert not outcome.duplicate


@scenario(
    options=Options(
        wal_segment_mb=1, write_queue_bytes=4096, write_max_bytes=1024, raft_inflight_bytes=2048
    )
)
async def test_slow_applying_follower_bounds_its_received_entries(fleet):
    leader = await fleet.leader()
    slow = (leader + 1) % 3
    fleet.processes[slow].delays.apply_us = 3_000_000
    payload = b"k 1" + b" " * 500
    for n in range(1, 61):
        await fleet.write(payload, sequence=n)
    piled = fleet.replica(slow).status()
    assert fleet.leading() == leader
    assert (piled.commit - piled.applied.index) * len(payload) < DELAY_ENTRIES * len(
        payload
    ) + 2 * 4096
    fleet.processes[slow].delays.apply_us = 50
    await fleet.settled()
    assert fleet.machine(slow).sums == {"k": 60}


@scenario()
async def test_oversized_operation_is_refused_before_proposal(fleet):
    leader = await fleet.leader()
    last = fleet.replica(leader).status().last
    with pytest.raises(TooLarge):
        await fleet.as_(leader, fleet.call(leader, b"k" * (17 << 20)))
    assert fleet.replica(leader).status().last == last


@pytest.mark.parametrize(
    ("client", "sequence", "first"), [(b"short", 1, 0), (CLIENT, 1, 2), (CLIENT, -1, -1)]
)
def test_malformed_ids_are_refused_before_proposal(client, sequence, first):
    @scenario(servers=1)
    async def steps(fleet):
        leader = await fleet.leader()
        last = fleet.replica(leader).status().last
        with pytest.raises(InvalidArgument):
            await fleet.as_(
                leader, fleet.call(leader, b"k 1", client=client, sequence=sequence, first=first)
            )
        assert fleet.replica(leader).status().last == last

    steps()


@scenario(groups=(GROUP, TabletId("b" * 32)))
async def test_state_machine_error_fails_only_its_replica(fleet):
    other = TabletId("b" * 32)
    leader = await fleet.leader()
    answer = fleet.spawn(leader, fleet.call(leader, BOOM))
    await fleet.until(lambda: answer, "an answer")
    assert isinstance(answer[0], OutcomeUnknown)
    replica = fleet.replica(leader)
    assert replica.state is State.FAILED
    assert "refused by the test's machine" in replica.status().error
    assert fleet.processes[leader].server.changes.count(GROUP) >= 2
    with pytest.raises(Unavailable, match="refused by the test's machine"):
        await fleet.as_(leader, fleet.call(leader, b"k 1"))
    with pytest.raises(Unavailable):
        await fleet.as_(leader, replica.read_point(None, 1000))
    assert (await fleet.write(b"k 1", group=other)).result == b"1"
    assert fleet.replica(leader, other).state is State.RUNNING
    fleet.forgive(ValueError)


@scenario()
async def test_concurrent_writes_are_replicated_in_groups(fleet):
    leader = await fleet.leader()
    before = fleet.host(leader).wal.stats()
    calls = [fleet.call(leader, b"k 1") for _ in range(300)]
    outcomes = await fleet.as_(leader, asyncio.gather(*calls))
    assert sorted(int(o.result) for o in outcomes) == list(range(1, 301))
    after = fleet.host(leader).wal.stats()
    assert after.rounds - before.rounds < 10
    assert after.slots - before.slots < 10
    assert len(fleet.machine(leader).groups) < 10
    shown = fleet.processes[leader].server.metrics.registry.get_sample_value
    assert (
        shown("nyala_replica_applied_entries_total") == fleet.replica(leader).status().applied.index
    )
    assert shown("nyala_wal_sync_count") == after.syncs
    assert shown("nyala_replica_elections_won_total") >= 1
