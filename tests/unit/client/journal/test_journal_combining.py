"""Concurrent steps of a client share operations: each takes effect once, and has its own outcome."""

import asyncio
from typing import Any

import pytest

from nyala.common.errors import (
    ConditionFailed,
    InvalidArgument,
    NyalaError,
    OutcomeUnknown,
    TimedOut,
    TooLarge,
    Unavailable,
)
from nyala.wire.proto import journal_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.unit.client.support.journal_scenarios import Scenario, invalidate, scenario
from tests.unit.client.support.journal_servers import ADDRESSES, Fault, JournalServers

COUNT = 40


def requests(s: Scenario) -> list[list[Any]]:
    """The steps of each request that was sent."""
    sent = [r for _, r in s.servers.asked if not isinstance(r, pb.JournalReadRequest)]
    return [list(r.steps) if isinstance(r, pb.JournalStepsRequest) else [r] for r in sent]


async def all_of(s: Scenario, *works: Any) -> list[Any]:
    """Run works at once; return each one's result or error."""
    return await asyncio.gather(*works, return_exceptions=True)


@scenario
async def test_concurrent_steps_share_requests_and_take_effect_once_each(s):
    ids = await all_of(s, *(s.append("a", b"%d" % n) for n in range(COUNT)))
    assert await s.read("a") == [(one, b"%d" % n) for n, one in enumerate(ids)]
    assert [len(r) for r in requests(s)] == [COUNT]
    await s.append("a", b"alone")
    assert [len(r) for r in requests(s)] == [COUNT, 1]


@scenario
async def test_steps_wait_while_requests_are_in_flight_and_form_the_next(s):
    async def caller(number: int) -> None:
        for _ in range(5):
            await s.append("a", b"%d" % number)

    await all_of(s, *(caller(n) for n in range(200)))
    sizes = [len(r) for r in requests(s)]
    assert sum(sizes) == 1000 == len(s.servers.group)
    assert max(sizes) == 64
    assert len(sizes) < 30


@scenario
async def test_each_caller_gets_the_outcome_of_its_own_step(s):
    first = await s.append("a", b"0")
    racers = await all_of(s, *(s.append("a", b"%d" % n, last=first) for n in range(8)))
    won = [r for r in racers if isinstance(r, int)]
    lost = [r for r in racers if isinstance(r, ConditionFailed)]
    assert (len(won), len(lost)) == (1, 7)
    assert {r.last for r in lost} == set(won)
    assert len({id(r) for r in lost}) == 7, "each raises an error of its own"


@scenario
async def test_operation_with_lost_response_takes_effect_once(s):
    s.servers.step_faults = [Fault(Unavailable("connection lost"), after=True)]
    ids = await all_of(s, *(s.append("a", b"%d" % n) for n in range(COUNT)))
    assert await s.read("a") == [(one, b"%d" % n) for n, one in enumerate(ids)]
    assert len(s.servers.group) == COUNT


@scenario
async def test_refused_step_fails_alone(s):
    bad = s.append("a", b"x" * (1 << 20) + b"x")
    empty = s.append("", b"x")
    good = [s.append("a", b"%d" % n) for n in range(5)]
    found = await all_of(s, *good[:3], bad, empty, *good[3:])
    assert [type(r) for r in found] == [int, int, int, TooLarge, InvalidArgument, int, int]
    assert sorted(data for _, data in await s.read("a")) == [b"0", b"1", b"2", b"3", b"4"]


@scenario
async def test_steps_that_free_are_not_combined_with_steps_that_add(s):
    first = await s.append("a", b"0")
    await all_of(s, s.append("a", b"1"), s.step(invalidate("a", first)), s.append("a", b"2"))
    kinds = [{c.WhichOneof("what") for step in r for c in step.changes} for r in requests(s)]
    assert sorted(map(sorted, kinds)) == [["append"], ["append"], ["invalidate"]]


@scenario
async def test_large_step_is_sent_alone(s):
    await all_of(s, *(s.append("a", b"x" * 30_000) for _ in range(6)))
    assert max(len(r) for r in requests(s)) == 2
    s.servers.asked.clear()
    await all_of(s, *(s.append("a", b"x" * 70_000) for _ in range(6)))
    assert [len(r) for r in requests(s)] == [1] * 6


@scenario
async def test_step_that_waited_behind_others_had_no_effect(s):
    """Those in flight may have taken effect; those not sent have not."""
    for member in s.servers.members.values():
        member.hung = True
    found = await all_of(s, *(s.append("a", b"%d" % n) for n in range(200)))
    kinds = {kind: [r for r in found if type(r) is kind] for kind in (OutcomeUnknown, TimedOut)}
    assert len(kinds[OutcomeUnknown]) + len(kinds[TimedOut]) == 200
    assert len(kinds[OutcomeUnknown]) == 128
    assert "waited behind others" in kinds[TimedOut][0].message
    for member in s.servers.members.values():
        member.hung = False
    assert await s.append("a", b"later")


@scenario
async def test_steps_of_one_operation_follow_a_new_leader(s):
    s.servers.lead(ADDRESSES[1])
    ids = await all_of(s, *(s.append("a", b"%d" % n) for n in range(COUNT)))
    assert not [r for r in ids if isinstance(r, NyalaError)]
    assert [len(r) for r in requests(s)] == [COUNT, COUNT]


def test_fixed_client_id_combines_nothing():
    """Two processes give the same numbers to the same steps, however these arrive."""

    async def main(loop: SimLoop) -> None:
        servers = JournalServers(loop)
        for together in (True, False):
            s = await Scenario(
                loop, servers, client_id=b"i" * 16, keep_results=True, since=5
            ).open()
            if together:
                await all_of(s, *(s.append("a", b"%d" % n) for n in range(5)))
            else:
                for n in range(5):
                    await s.append("a", b"%d" % n)
        assert [data for _, data in await s.read("a")] == [b"0", b"1", b"2", b"3", b"4"]

    run(main)


@pytest.mark.parametrize("answers", [0, 1, 3])
def test_answer_with_other_number_of_results_is_unknown_outcome(answers):
    async def main(loop: SimLoop) -> None:
        servers = JournalServers(loop)
        s = await Scenario(loop, servers).open()
        whole = servers.call

        async def call(address: str, method: Any, request: Any, *, timeout_ms: int) -> Any:
            response = await whole(address, method, request, timeout_ms=timeout_ms)
            if isinstance(response, pb.JournalStepsResponse):
                one = response.results[0]
                del response.results[:]
                response.results.extend([one] * answers)
            return response

        servers.call = call  # type: ignore[method-assign]
        found = await all_of(s, s.append("a", b"1"), s.append("a", b"2"))
        assert [type(r) for r in found] == [OutcomeUnknown] * 2
        assert "of 2 steps" in found[0].message

    run(main)
