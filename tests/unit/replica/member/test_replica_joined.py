"""A retry of a write that is in flight waits for its entry: the log has one, however often it is sent."""

import asyncio

import pytest

from nyala.common.errors import NotLeader, OutcomeUnknown
from nyala.common.ids import OpId
from nyala.replica.member.applier import Answer, AnswerKind
from nyala.replica.member.pending_writes import PendingWrites, WriteId
from tests.sim.world.loop import run
from tests.unit.replica.support.replica_support import scenario

SECOND_US = 1_000_000


@scenario()
async def test_each_retry_joins_its_entry_in_flight_at_slow_leader(fleet):
    leader = await fleet.leader()
    await fleet.settled()
    others = [n for n in range(3) if n != leader]
    last = fleet.replica(leader).status().last.index
    fleet.network.cut([f"s{n}" for n in others], [f"s{leader}"])  # answers are lost
    calls = [fleet.spawn(leader, fleet.call(leader, b"k 1", sequence=1))]
    for _ in range(4):
        await fleet.pass_ms(50)
        calls.append(fleet.spawn(leader, fleet.call(leader, b"k 1", sequence=1)))
    await fleet.pass_ms(50)
    assert fleet.replica(leader).status().last.index == last + 1, "one entry for all attempts"
    fleet.network.heal()
    await fleet.until(lambda: all(calls), "every try is answered")
    assert {(c[0].result, c[0].duplicate, c[0].stamp) for c in calls} == {
        (b"1", False, calls[0][0].stamp)
    }
    assert fleet.machine(leader).runs == 1


@scenario()
async def test_timed_out_attempt_leaves_entry_for_next_retry(fleet):
    leader = await fleet.leader()
    await fleet.settled()
    others = [n for n in range(3) if n != leader]
    last = fleet.replica(leader).status().last.index
    fleet.network.cut([f"s{n}" for n in others], [f"s{leader}"])
    first = fleet.spawn(leader, fleet.call(leader, b"k 1", sequence=1, timeout_ms=20))
    await fleet.until(lambda: first, "the first attempt has timed out")
    assert isinstance(first[0], OutcomeUnknown)
    again = fleet.spawn(leader, fleet.call(leader, b"k 1", sequence=1))
    await fleet.pass_ms(20)
    assert fleet.replica(leader).status().last.index == last + 1
    fleet.network.heal()
    await fleet.until(lambda: again, "the retry is answered")
    assert (again[0].result, again[0].duplicate) == (b"1", False)


@scenario()
async def test_retry_with_other_bytes_is_not_joined(fleet):
    leader = await fleet.leader()
    others = [n for n in range(3) if n != leader]
    fleet.network.cut([f"s{n}" for n in others], [f"s{leader}"])
    first = fleet.spawn(leader, fleet.call(leader, b"k 1", sequence=1))
    other = fleet.spawn(leader, fleet.call(leader, b"k 2", sequence=1))
    await fleet.pass_ms(50)
    fleet.network.heal()
    await fleet.until(lambda: first and other, "both are answered")
    assert first[0].result == b"1"
    assert "other bytes" in str(other[0])


def drive(work):
    return asyncio.run(work())


MINE = WriteId(b"c" * 16, 1, 7)


def test_retry_of_completed_entry_is_not_joined():
    async def work():
        for end in (
            lambda w: w.applied(OpId(1, 5), Answer(AnswerKind.DONE, 9, b"r")),
            lambda w: w.applied(OpId(2, 5), None),
            lambda w: w.on_leadership_lost(4),
            lambda w: w.fail("it ends"),
        ):
            writes = PendingWrites()
            first = writes.add(OpId(1, 5), 100, SECOND_US, MINE)
            joined = writes.join(MINE, SECOND_US)
            assert joined is not None
            end(writes)
            assert type(first.exception()) is type(joined.exception())
            assert writes.join(MINE, SECOND_US) is None
            assert (len(writes), writes.inflight_bytes) == (0, 0)

    drive(work)


def test_joined_attempts_have_separate_deadlines_and_use_no_quota():
    async def work():
        writes = PendingWrites()
        first = writes.add(OpId(1, 5), 100, 1 * SECOND_US, MINE)
        second = writes.join(MINE, 2 * SECOND_US)
        assert second is not None
        assert writes.inflight_bytes == 100
        writes.expire(SECOND_US, str)
        assert isinstance(first.exception(), OutcomeUnknown)
        assert not second.done()
        writes.applied(OpId(1, 5), Answer(AnswerKind.DONE, 9, b"r"))
        assert second.result() == Answer(AnswerKind.DONE, 9, b"r")

    drive(work)


def test_truncated_entry_is_not_joined_when_index_is_reused():
    async def work():
        writes = PendingWrites()
        first = writes.add(OpId(1, 5), 100, SECOND_US, MINE)
        second = writes.add(OpId(3, 5), 10, SECOND_US, MINE)
        with pytest.raises(NotLeader):
            first.result()
        assert writes.join(MINE, SECOND_US) is not None
        writes.applied(OpId(3, 5), Answer(AnswerKind.DONE, 9, b"r"))
        assert second.result() == Answer(AnswerKind.DONE, 9, b"r")
        assert writes.inflight_bytes == 0

    drive(work)


def test_write_whose_entry_was_displaced_is_not_acknowledged():
    """The outcome at its index is that of another leader's operation."""

    async def main(loop):
        writes = PendingWrites()
        displaced = writes.add(OpId(1, 5), 3, 1 << 60)
        own = writes.add(OpId(1, 6), 3, 1 << 60)
        writes.applied(OpId(2, 5), Answer(AnswerKind.DONE, 7, b"another's"))
        writes.applied(OpId(1, 6), Answer(AnswerKind.DONE, 8, b"its own"))
        assert isinstance(displaced.exception(), NotLeader)
        assert own.result() == Answer(AnswerKind.DONE, 8, b"its own")
        assert writes.inflight_bytes == len(writes) == 0

    run(main)
