"""Terms: steps belong to one, a candidate may end with one, and a closed one leaves no leader."""

import asyncio

import pytest

from nyala.common.errors import JournalFull, NotLeading, OutcomeUnknown, TimedOut, Unavailable
from nyala.journal.steps import LEADER_KEYS
from nyala.recipes import Leader
from nyala.recipes.candidate import LeaderCandidate, elected_within
from nyala.recipes.records import KEYS, ElectionSettings
from tests.unit.client.support.journal_scenarios import append
from tests.unit.client.support.journal_servers import Fault
from tests.unit.recipes.support.blocking import processes
from tests.unit.recipes.support.candidates import BACK_OFF_MS, LOG, TIMEOUT_MS, candidates

LOST_ANSWER = Fault(Unavailable("connection lost"), after=True)


@candidates
async def test_lock_that_is_let_go_while_a_step_is_under_way_is_taken_at_once(c):
    """The end of a leadership arrives while the establishing step of a candidate is not answered yet."""
    y, z = await c.candidate("y"), await c.candidate("z")
    await y.elected()
    x = await c.candidate("x")
    c.links["x"].answer_ms = 50
    await c.wait_s(2)
    resigning = asyncio.get_running_loop().create_task(y.steps.resign())
    while not (z.acts or x.acts):
        await c.wait_s(0.001)
    await resigning
    first, last = (z, x) if z.acts else (x, z)
    await first.close()
    free = c.loop.time()
    await last.elected()
    assert c.loop.time() - free < 0.2


@pytest.mark.parametrize("after_ms", [0.0, 0.5, 1.0, 1.5, 2.0, 5.0])
def test_candidate_that_is_closed_at_any_moment_leaves_no_leader(after_ms):
    @candidates
    async def at(c):
        x = await c.candidate("x")
        c.links["x"].answer_ms = 2
        await c.wait_s(after_ms / 1000)
        await x.close()
        began = c.loop.time()
        y = await c.candidate("y")
        await y.elected()
        assert c.loop.time() - began < 0.2
        assert not x.acts

    at()


@candidates
async def test_candidate_closed_while_its_step_has_no_answer_resigns_when_it_took_effect(c):
    c.servers.step_faults = [LOST_ANSWER] * 3
    x = await c.candidate("x")
    await c.wait_s(0.005)
    await x.close()
    assert (
        c.servers.state.keys.get(KEYS + LOG) is None
        or c.servers.state.keys[KEYS + LOG].value is None
    )


@pytest.mark.row("S3.62")
@candidates
async def test_full_journal_has_room_for_elections_whose_leader_makes_room(c):
    assert KEYS == LEADER_KEYS, "by which the journal knows elections"
    for member in c.servers.members.values():
        member.state.limit_bytes = 1_500
    one = await c.candidate("one")
    await one.elected()
    filling = (await one.steps.step((), [append(LOG, b"x" * 700)])).ids[0]
    with pytest.raises(JournalFull):
        await one.steps.step((), [append(LOG, b"y" * 700)])
    leading = "one"
    for name in "two", "three", "four":
        await c.crash(leading)
        one, leading = await c.candidate(name), name
        assert await elected_within(one, 30), "though the journal is full"
    with pytest.raises(JournalFull):
        await one.steps.step((), [append(LOG, b"y" * 700)])
    step = (await c.journal()).builder()
    step.append(LOG, b"y" * 700, [filling])
    await one.steps.step(*step.parts)
    assert c.entries()[1:] == [b"y" * 700]
    await one.close()


@candidates
async def test_full_journal_is_told_by_wait_and_its_candidate_leads_once_there_is_room(c):
    other = await c.journal()
    await other.step([], [append("other", b"x" * 70_000)])
    for member in c.servers.members.values():
        member.state.limit_bytes = 1_500  # there is no room in what is kept for elections
    one = await c.candidate("one")
    began, asked = c.loop.time(), len(c.servers.asked)
    with pytest.raises(
        JournalFull, match=r"no leader of log 'service' can be established: .*Invalidate"
    ):
        await elected_within(one, None)
    assert c.loop.time() - began < 1
    await c.wait_s(60)
    assert len(c.servers.asked) - asked < 300, "it tries a few times in each timeout"
    for member in c.servers.members.values():
        member.state.limit_bytes = 100_000
    await c.wait_s(2)
    assert await elected_within(one, 5)
    await one.close()


@candidates
async def test_candidate_for_one_term_ends_with_it(c):
    lost = []

    async def on_lost(reason):
        lost.append(reason)

    settings = ElectionSettings(LOG, "one", "", TIMEOUT_MS, BACK_OFF_MS)
    one = LeaderCandidate(await c.journal("one"), settings, on_lost, once=True)
    one.start()
    first = await one.elected()
    c.links["one"].cut = True
    await c.wait_s(10)
    c.links["one"].cut = False
    await c.wait_s(60)
    assert len(lost) == 1
    assert (one.acts, one.epoch) == (False, 0)
    with pytest.raises(NotLeading, match="has led"):
        await one.elected()
    with pytest.raises(NotLeading):
        one.steps.check(first)
    two = await c.candidate("two")
    assert await two.elected() > first
    await one.close()
    assert two.acts


@candidates
async def test_step_that_began_in_one_term_has_no_effect_in_a_later_one(c):
    """A leads, B, and A again: a step of A's first term, sent or not, is refused."""
    one = await c.candidate("one")
    first = await one.elected()
    term = one.steps.term()
    c.links["one"].cut = True
    waiting = asyncio.get_running_loop().create_task(term.step((), [append(LOG, b"waits")]))
    two = await c.candidate("two")
    await two.elected()
    await two.steps.step((), [append(LOG, b"of two")])
    c.links["one"].cut = False
    await two.close()
    second = await one.elected()
    with pytest.raises((NotLeading, OutcomeUnknown, TimedOut)):
        await waiting
    for step in (
        term.step((), [append(LOG, b"late")]),
        one.steps.step((), [append(LOG, b"late")], first),
    ):
        with pytest.raises(
            NotLeading, match=f"epoch {first} of log 'service' has no effect in epoch {second}"
        ):
            await step
    with pytest.raises(NotLeading):
        term.check()
    assert one.steps.check() == one.steps.check(second) == second
    assert [e for e in c.entries() if not e.startswith(b"leader_alive")] == [b"of two"]


def leader(p, name, on_lost=None):
    return Leader(p.journal(name), LOG, holder=name, timeout_ms=TIMEOUT_MS, on_lost=on_lost)


def send_set(step):
    step.set("k", b"late")
    step.send()


def lose(p, name):
    """Let a process be replaced."""
    p.candidates.links[name].cut = True
    p.wait_s(4 * TIMEOUT_MS / 1000)
    p.candidates.links[name].cut = False


@processes
def test_append_with_an_earlier_epoch_has_no_effect(p):
    one = leader(p, "one")
    first = one.wait()
    began = one.atomically()
    began.append(LOG, b"began in the first term")
    lose(p, "one")
    second = one.wait(60)
    assert second > first
    for late in (
        began.send,
        lambda: one.append(b"late", epoch=first),
        lambda: one.check(first),
        lambda: one.confirm(first),
        lambda: send_set(one.atomically(first)),
    ):
        with pytest.raises(NotLeading):
            late()
    assert one.append(b"new", epoch=second)
    assert one.confirm() == one.confirm(second) == second
    assert p.candidates.entries()[1:] == [b"new"]
    one.close()


@processes
def test_process_goes_on_when_its_leadership_is_lost(p):
    one = leader(p, "one")
    one.wait()
    lose(p, "one")
    assert one.wait(60), "it is a candidate again"


class WorkersRunError(Exception):
    """The workers cannot be stopped."""


@processes
def test_what_on_lost_raises_is_raised_by_wait_and_ends_the_candidate(p):
    for error in (WorkersRunError("they run"), SystemExit(3), KeyboardInterrupt()):

        def on_lost(reason, error=error):
            raise error

        name = f"one {type(error).__name__}"
        one = leader(p, name, on_lost)
        one.wait(60)
        lose(p, name)
        for _ in range(2):
            with pytest.raises(type(error)):
                one.wait(60)
        assert not one.leads
        one.close()
