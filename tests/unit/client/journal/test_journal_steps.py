"""Steps of a client against servers that fail: each takes effect once, and errors state its outcome."""

import pytest

from nyala.common.errors import (
    ConditionFailed,
    InvalidArgument,
    JournalFull,
    NotFound,
    OutcomeUnknown,
    SessionExpired,
    TimedOut,
    Unavailable,
)
from nyala.wire.proto import journal_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.unit.client.support.journal_scenarios import (
    Scenario,
    append,
    log_last,
    scenario,
    set_key,
)
from tests.unit.client.support.journal_servers import (
    ADDRESSES,
    FIRST_STAMP,
    THROTTLED,
    Fault,
    JournalServers,
    answered,
)


def steps_sent(s: Scenario) -> list[pb.JournalStepRequest]:
    return [r for _, r in s.servers.asked if isinstance(r, pb.JournalStepRequest)]


@scenario
async def test_step_with_lost_response_is_sent_again_with_the_same_bytes(s):
    s.servers.step_faults = [Fault(Unavailable("connection lost"), after=True)]
    first = await s.append("a", b"1")
    assert await s.read("a") == [(first, b"1")]
    assert len(s.servers.group) == 1
    tries = steps_sent(s)
    assert len(tries) > 1
    for sent in tries:
        sent.ClearField("propagated_time")
        sent.ClearField("timeout_ms")
    assert all(sent == tries[0] for sent in tries)
    await s.append("a", b"2")
    assert steps_sent(s)[-1].sequence == tries[0].sequence + 1


@scenario
async def test_retry_of_failed_condition_returns_the_same_failure(s):
    last = await s.append("a", b"1")
    s.servers.step_faults = [Fault(Unavailable("connection lost"), after=True)]
    with pytest.raises(ConditionFailed, match="the last id of log 'a' is") as failed:
        await s.append("a", b"2", last=7)
    assert failed.value.last == last
    assert failed.value.details["condition"] == "0"
    assert await s.read("a") == [(last, b"1")]


@scenario
async def test_condition_failed_names_the_condition(s):
    version = (await s.step(set_key("k", b"v")))[0]
    wanted = pb.JournalCondition(key_version=pb.KeyVersion(key="k", version=3))
    with pytest.raises(ConditionFailed, match=f"key 'k' has version {version}") as failed:
        await s.step(append("a", b"1"), require=[log_last("a", 0), wanted])
    assert (failed.value.details["condition"], failed.value.last) == ("1", version)
    created = pb.JournalCondition(log_created=pb.LogId(log="a", id=5))
    with pytest.raises(ConditionFailed, match="created with id 0"):
        await s.step(append("a", b"1"), require=[created])


@scenario
async def test_step_follows_new_leader(s):
    await s.append("a", b"1")
    s.servers.lead(ADDRESSES[2])
    await s.append("a", b"2")
    assert s.journal.tablet.leader == ADDRESSES[2]
    s.servers.asked.clear()
    await s.append("a", b"3")
    assert [a for a, _ in s.servers.asked] == [ADDRESSES[2]]


@scenario
async def test_leader_is_looked_up_again_when_it_is_down(s):
    s.servers.members[ADDRESSES[0]].down = True
    s.servers.lead(ADDRESSES[1])
    s.servers.known_leader = ADDRESSES[1]
    assert await s.append("a", b"1")
    assert len(s.servers.group) == 1


@scenario
async def test_throttled_step_waits_for_requested_time(s):
    s.servers.step_faults = [THROTTLED]
    began = s.loop.now_us()
    await s.append("a", b"1")
    assert s.loop.now_us() - began >= 20_000


@scenario
async def test_undelivered_step_times_out_without_effect(s):
    for member in s.servers.members.values():
        member.down = True
    with pytest.raises(TimedOut, match="It had no effect"):
        await s.append("a", b"1")


@scenario
async def test_possibly_executed_step_has_unknown_outcome(s):
    s.servers.step_faults = [Fault(Unavailable("connection lost"), after=True)] + [
        Fault(answered(Unavailable("no majority"))) for _ in range(1000)
    ]
    with pytest.raises(OutcomeUnknown, match="the same condition settles it"):
        await s.append("a", b"1", last=0)
    s.servers.step_faults.clear()
    with pytest.raises(ConditionFailed) as failed:
        await s.append("a", b"1", last=0)
    assert await s.read("a") == [(failed.value.last, b"1")]


@scenario
async def test_refusal_after_possibly_delivered_try_is_unknown_outcome(s):
    with pytest.raises(InvalidArgument, match="empty"):
        await s.append("", b"1")
    s.servers.step_faults = [
        Fault(Unavailable("connection lost")),
        Fault(answered(InvalidArgument("not like this"))),
    ]
    with pytest.raises(OutcomeUnknown, match="earlier try"):
        await s.append("a", b"1")


@scenario
async def test_step_to_dropped_journal_is_not_found_or_of_unknown_outcome(s):
    s.servers.dropped, s.servers.tablet = True, "c" * 32
    with pytest.raises(NotFound):
        await s.append("a", b"1")
    s.servers.step_faults = [Fault(Unavailable("connection lost"))]
    with pytest.raises(OutcomeUnknown, match="dropped"):
        await s.append("a", b"1")


@scenario
async def test_step_is_sent_to_replacement_tablet(s):
    await s.append("a", b"1")
    s.servers.tablet = "c" * 32
    await s.append("a", b"2")
    assert s.journal.tablet.id == "c" * 32


@scenario
async def test_journal_full_reports_size_and_limit(s):
    s.servers.state.limit_bytes = 400
    await s.append("a", b"1")
    with pytest.raises(JournalFull) as full:
        await s.append("a", b"x" * 1000)
    assert full.value.details["limit"] == "400"
    assert int(full.value.details["bytes"]) > 1000


@scenario
async def test_expired_session_restarts_unless_earlier_try_may_have_been_executed(s):
    until = 1 << 62
    expired = Fault(answered(SessionExpired("long ago", {"forgotten_until": str(until)})))
    s.servers.step_faults = [expired]
    await s.append("a", b"1")
    assert steps_sent(s)[-1].since == until + 1
    s.servers.step_faults = [Fault(Unavailable("connection lost")), expired]
    with pytest.raises(SessionExpired):
        await s.append("a", b"2")


@scenario
async def test_step_of_client_that_saw_a_wrong_clock_is_sent_with_the_leader_s_time(s):
    await s.append("a", b"1")
    ahead = InvalidArgument("ahead of this server's clock", {"latest_since": "5"})
    s.servers.step_faults = [Fault(answered(ahead))]
    await s.append("a", b"2")
    assert [sent.since for sent in steps_sent(s)[-2:]] == [FIRST_STAMP, 5]
    assert [data for _, data in await s.read("a")] == [b"1", b"2"]


def test_fixed_client_id_keeps_all_results():
    async def main(loop: SimLoop) -> None:
        servers = JournalServers(loop)
        for _ in range(2):  # the second process repeats the first one's steps
            s = await Scenario(
                loop, servers, client_id=b"i" * 16, keep_results=True, since=5
            ).open()
            await s.append("a", b"1", last=0)
            await s.append("a", b"2")
            assert {(r.first_outstanding, r.since) for r in steps_sent(s)} == {(1, 5)}
        assert [data for _, data in await s.read("a")] == [b"1", b"2"]

    run(main)


@scenario
async def test_step_carries_the_time_of_the_one_before(s):
    await s.append("a", b"1")
    assert steps_sent(s)[-1].propagated_time == 0
    await s.append("a", b"2")
    assert steps_sent(s)[-1].propagated_time == FIRST_STAMP
