"""Candidate of a log: establishment, renewal, takeover, resignation, steps with unknown outcome."""

import asyncio
import json
from typing import Any

import pytest

from nyala.common.errors import (
    ConditionFailed,
    NotFound,
    NotLeading,
    OutcomeUnknown,
    SessionExpired,
    StaleEpoch,
    Unavailable,
)
from nyala.journal import steps
from nyala.recipes.guard import Guard
from nyala.recipes.records import ALIVE, KEYS, leader_info
from nyala.wire import methods
from tests.unit.client.support.journal_scenarios import append, set_key
from tests.unit.client.support.journal_servers import Fault
from tests.unit.recipes.support.candidates import BACK_OFF_MS, LOG, TIMEOUT_MS, candidates

LOST_ANSWER = Fault(Unavailable("connection lost"), after=True)
LOST_REQUEST = Fault(Unavailable("connection lost"))


@pytest.mark.row("S3.62", "S3.65")
@candidates
async def test_first_candidate_is_established_in_one_step_with_the_hint(c):
    one = await c.candidate("one")
    epoch = await one.elected()
    assert len(c.servers.group) == 1
    (entry,) = c.entries()
    info = leader_info(await (await c.journal()).get(KEYS + LOG))
    assert info is not None
    assert (info.epoch, info.holder, info.locator) == (epoch, "one", "one:7000")
    assert json.loads(entry.removeprefix(ALIVE))["holder"] == "one"
    assert c.servers.state.logs[LOG].last == epoch
    await one.close()


@pytest.mark.row("S3.59", "S3.61")
@candidates
async def test_idle_leader_renews_and_is_not_replaced(c):
    one, two = await c.candidate("one"), await c.candidate("two")
    epoch = await one.elected()
    for _ in range(60):
        await c.wait_s(1)
        assert one.steps.check() == epoch
        assert not two.acts
    assert len(c.entries()) == 1, "renewals leave no entries"
    steps_a_second = len(c.servers.group) / 60
    assert 0.9 < steps_a_second * TIMEOUT_MS / 3000 < 1.4
    await one.close()
    await two.close()


@pytest.mark.row("S3.59", "S3.62")
@candidates
async def test_crashed_leader_is_replaced_within_timeout_and_back_off(c):
    one, two = await c.candidate("one"), await c.candidate("two")
    first = await one.elected()
    await c.wait_s(20)
    await one.steps.step((), [append(LOG, b"record")])
    crashed = c.loop.time()
    await c.crash("one")
    second = await two.elected()
    took_s = c.loop.time() - crashed
    assert TIMEOUT_MS / 1000 - 0.1 < took_s < (TIMEOUT_MS + BACK_OFF_MS) / 1000 + 0.5
    assert second > first
    assert len(c.entries()) == 2, "the entry of the first leader is invalid"
    await two.close()


@candidates
async def test_leader_that_only_renewed_is_replaced_within_timeout_and_back_off_whenever_it_crashes(
    c,
):
    for number in range(8):
        one = await c.candidate(f"one {number}")
        await one.elected()
        two = await c.candidate(f"two {number}")
        await c.wait_s(5 + number * TIMEOUT_MS / 8000)
        crashed = c.loop.time()
        await c.crash(f"one {number}")
        await two.elected()
        assert c.loop.time() - crashed < (TIMEOUT_MS + BACK_OFF_MS) / 1000 + 0.5
        await two.close()


@pytest.mark.row("S3.63")
@candidates
async def test_one_of_candidates_of_the_same_moment_is_established(c):
    every = await asyncio.gather(*(c.candidate(f"c{n}") for n in range(5)))
    await c.wait_s(0.5)
    assert len(c.servers.group) == 5, "each has tried before it knew of another one"
    assert sum(one.acts for one in every) == 1
    assert len(c.entries()) == 1
    await c.wait_s(2)
    assert sum(one.acts for one in every) == 1
    assert len(c.entries()) == 1
    for one in every:
        await one.close()


@pytest.mark.row("S3.60")
@candidates
async def test_steps_of_a_leader_that_was_replaced_have_no_effect(c):
    one = await c.candidate("one")
    await one.elected()
    other = await c.journal()
    key = await other.get(KEYS + LOG)
    await other.step([], [set_key(KEYS + LOG, key.value)])  # as an establishing step does
    before = c.entries()
    with pytest.raises(NotLeading, match="does not lead log 'service' any more"):
        await one.steps.step((), [append(LOG, b"late")])
    with pytest.raises(NotLeading):
        one.steps.check()
    await c.wait_s(0.1)
    assert c.lost == [("one", "another process was established")]
    assert c.entries() == before


@candidates
async def test_another_writer_of_the_log_ends_the_leadership(c):
    one = await c.candidate("one")
    await one.elected()
    await (await c.journal()).step([], [append(LOG, b"foreign")])
    with pytest.raises(NotLeading):
        await one.steps.step((), [append(LOG, b"x")])
    await c.wait_s(0.1)
    assert c.lost == [("one", "another writer has appended to the log of this leader")]
    assert c.entries()[1:] == [b"foreign"]


@candidates
async def test_resigned_leader_is_replaced_at_once_and_leaves_no_entry(c):
    one, two = await c.candidate("one"), await c.candidate("two")
    first = await one.elected()
    await c.wait_s(10)
    began = c.loop.time()
    await one.steps.resign()
    assert not one.acts
    second = await two.elected()
    assert c.loop.time() - began < 0.5
    assert second > first
    assert len(c.entries()) == 1
    assert c.lost == []
    await one.close()
    await two.close()
    assert c.entries() == []


@pytest.mark.row("S3.66")
@candidates
async def test_same_process_has_another_epoch_in_each_term(c):
    epochs = []
    for name in ("one", "two", "one"):
        now = await c.candidate(name)
        epochs.append(await now.elected())
        await now.close()
    assert epochs == sorted(set(epochs))


@pytest.mark.row("S3.66", "S3.67", "S3.64")
@candidates
async def test_what_a_leader_sent_in_its_first_term_is_refused_in_its_second(c):
    """A leads, B, and A again; a step and a request of A's first term arrive then."""
    one, held = await c.candidate("one"), []
    first = await one.elected()
    deliver = c.servers.call

    async def hold(address: str, method: Any, request: Any, *, timeout_ms: int) -> Any:
        late = method in (methods.JOURNAL_STEP, methods.JOURNAL_STEPS)
        if late and b"late" in request.SerializeToString():
            held.append((method, request))
            raise Unavailable("no answer")
        if late and held and (await one_key()).version == first + 1:
            raise Unavailable("no answer")  # nor do its renewals arrive
        return await deliver(address, method, request, timeout_ms=timeout_ms)

    other = await c.journal()

    async def one_key() -> Any:
        return await other.get(KEYS + LOG)

    c.servers.call = hold
    with pytest.raises(OutcomeUnknown):
        await one.steps.step((), [append(LOG, b"late")])
    c.servers.call = deliver
    two = await c.candidate("two")
    second = await two.elected()
    await two.close()
    third = await one.elected()
    assert first < second < third
    before = c.entries()
    guard = Guard()
    guard.check(third)
    for method, request in held:
        await deliver(c.servers.leader, method, request, timeout_ms=1_000)
    with pytest.raises(StaleEpoch):
        guard.check(first)
    assert c.entries() == before
    assert one.steps.check() == third, "it still leads"
    assert (await one.steps.step((), [append(LOG, b"new")])).ids
    assert c.entries()[1:] == [b"new"]


@candidates
async def test_leader_cut_off_from_the_journal_stops_within_its_window(c):
    one = await c.candidate("one")
    await one.elected()
    await c.wait_s(5)
    for member in c.servers.members.values():
        member.down = True
    began = c.loop.time()
    while one.acts:
        await c.wait_s(0.01)
    assert c.loop.time() - began <= TIMEOUT_MS * 3 / 4000
    await c.wait_s(0.2)
    assert c.lost == [("one", "no step took effect for 3/4 of the timeout")]
    for member in c.servers.members.values():
        member.down = False
    assert await one.elected(), "it is a candidate again"


@candidates
async def test_established_with_lost_answer_leads(c):
    c.servers.step_faults = [LOST_ANSWER] * 30
    one = await c.candidate("one")
    epoch = await one.elected()
    assert c.servers.state.logs[LOG].last == epoch
    assert len(c.entries()) == 1


@candidates
async def test_step_with_unknown_outcome_that_took_effect_returns_its_ids(c):
    one = await c.candidate("one")
    await one.elected()
    c.servers.step_faults = [LOST_ANSWER] * 100_000
    task = asyncio.get_running_loop().create_task(
        one.steps.step((), [append(LOG, b"x"), set_key("k", b"v")])
    )
    await c.wait_s(1.2)
    c.servers.step_faults = []
    ids = (await task).ids
    assert c.entries()[1:] == [b"x"], "once"
    other = await c.journal()
    assert (await other.get("k")).version == ids[1] == ids[0] + 1
    assert (await one.steps.step((), [append(LOG, b"y")])).ids
    assert c.lost == []


@candidates
async def test_step_that_never_arrived_is_sent_again(c):
    one = await c.candidate("one")
    await one.elected()
    c.servers.step_faults = [LOST_REQUEST] * 100_000
    task = asyncio.get_running_loop().create_task(one.steps.step((), [append(LOG, b"x")]))
    await c.wait_s(1.2)
    c.servers.step_faults = []
    assert (await task).ids
    assert c.entries()[1:] == [b"x"], "once"


@pytest.mark.row("S3.60")
@candidates
async def test_outcome_of_a_step_is_told_by_the_journal_whatever_takes_effect_besides(c):
    """The step is lost; its requests, then answers, are lost for as long as two renewals take."""
    one = await c.candidate("one")
    await one.elected()
    c.servers.step_faults = [LOST_REQUEST] * 100_000
    task = asyncio.get_running_loop().create_task(one.steps.step((), [append(LOG, b"x")]))
    await c.wait_s(1.05)
    c.servers.step_faults = [LOST_ANSWER] + [LOST_REQUEST] * 100_000
    await c.wait_s(1.02)
    c.servers.step_faults = []
    (step_id,) = (await task).ids
    *_, found = c.servers.state.logs[LOG].entries.read(0, step_id)
    assert found == (step_id, b"x"), "what was acknowledged is there"
    assert c.entries()[1:] == [b"x"], "once"
    assert c.lost == []


@candidates
async def test_step_whose_session_the_journal_has_forgotten_ends_the_leadership(c):
    one = await c.candidate("one")
    await one.elected()
    c.servers.step_faults = [LOST_REQUEST, Fault(SessionExpired("forgotten", {}))]
    with pytest.raises(OutcomeUnknown, match="does not lead log 'service' any more"):
        await one.steps.step((), [append(LOG, b"x")])
    with pytest.raises(NotLeading):
        one.steps.check()
    await c.wait_s(0.1)
    assert c.lost == [("one", "the journal does not tell whether a step took effect")]


@candidates
async def test_step_after_a_renewal_without_answer_takes_effect(c):
    one = await c.candidate("one")
    await one.elected()
    c.servers.step_faults = [LOST_ANSWER] * 12
    await c.wait_s(1.3)
    assert (await one.steps.step((), [append(LOG, b"x")])).ids
    assert c.entries()[1:] == [b"x"]
    assert c.lost == []


@candidates
async def test_step_that_stays_unanswered_has_unknown_outcome(c):
    one = await c.candidate("one")
    await one.elected()
    c.servers.step_faults = [LOST_ANSWER] * 100_000
    with pytest.raises(OutcomeUnknown, match="does not lead log 'service'"):
        await one.steps.step((), [append(LOG, b"x")])
    assert not one.acts


@pytest.mark.row("S3.64")
@candidates
async def test_confirm_has_the_journal_confirm_the_leadership(c):
    one = await c.candidate("one")
    epoch = await one.elected()
    count = len(c.servers.group)
    assert await one.steps.confirm() == epoch
    assert len(c.servers.group) == count + 1
    other = await c.journal()
    await other.step([], [set_key(KEYS + LOG, b"{}")])
    with pytest.raises(NotLeading):
        await one.steps.confirm()


@candidates
async def test_condition_of_a_step_keeps_its_number_and_the_leadership(c):
    one = await c.candidate("one")
    await one.elected()
    step = (await c.journal()).builder()
    step.require(key="k", version=5)
    step.append(LOG, b"x")
    with pytest.raises(ConditionFailed, match="key 'k' has version 0") as failed:
        await one.steps.step(*step.parts)
    assert failed.value.details["condition"] == "0"
    assert (await one.steps.step((), [append(LOG, b"y")])).ids
    assert c.entries()[1:] == [b"y"]


@candidates
async def test_steps_of_many_callers_take_effect_in_turn(c):
    one = await c.candidate("one")
    await one.elected()
    await asyncio.gather(*(one.steps.step((), [append(LOG, b"%d" % n)]) for n in range(30)))
    assert sorted(map(int, c.entries()[1:])) == list(range(30))
    assert c.lost == []


@candidates
async def test_steps_that_change_other_logs_and_keys_renew_too(c):
    one = await c.candidate("one")
    await one.elected()
    last = c.servers.state.logs[LOG].last
    outcome = await one.steps.step((), [append("other", b"x"), set_key("k", b"v")])
    assert len(outcome.ids) == 2
    assert c.servers.state.logs[LOG].last == outcome.ids[1] + 1 > last
    assert (await one.steps.step((), [append("other", b"y")])).ids
    assert isinstance(c.servers.group[-1].changes[-1], steps.Invalidate)


@candidates
async def test_dropped_journal_ends_the_election(c):
    one, two = await c.candidate("one"), await c.candidate("two")
    await one.elected()
    c.servers.dropped, c.servers.tablet = True, "c" * 32
    with pytest.raises(NotFound):
        await two.elected()
    await c.wait_s(TIMEOUT_MS / 1000)
    assert not one.acts
    assert [name for name, _ in c.lost] == ["one"]
