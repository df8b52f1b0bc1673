"""Steps of a journal through real tablet servers: conditions, logs and keys together."""

from typing import Any

import pytest

from nyala.common.errors import InvalidArgument, TooLarge
from nyala.wire import methods
from nyala.wire.proto import journal_pb2 as jb
from tests.unit.tserver.support.journal_group import (
    entry,
    last_is,
    set_key,
    version_is,
    with_journal,
)
from tests.unit.tserver.support.tablet_group import refused

RACERS = 8


@pytest.mark.row("S3.63")
def test_one_of_concurrent_steps_with_one_condition_succeeds():
    async def work(group):
        last = 0
        for _ in range(5):
            running = [
                group.cluster.loop.create_task(
                    group.step(entry(f"{n}"), conditions=(last_is(last),), client=bytes([n]) * 16)
                )
                for n in range(RACERS)
            ]
            answers = [await task for task in running]
            (won,) = [t.done.ids[0] for t in answers if t.HasField("done")]
            assert [t.failed.actual for t in answers if t.HasField("failed")] == [won] * (
                RACERS - 1
            )
            assert won > last
            last = won
        assert len(await group.read()) == 5

    with_journal(work)


@pytest.mark.row("S3.22", "S3.69")
def test_step_changes_log_and_key_together_or_neither():
    async def work(group):
        first, version = (await group.step(entry("a"), set_key("k", "1"))).done.ids
        assert await group.value("k") == (version, b"1")
        both = (version_is("k", version), last_is(first))
        replaced = entry("b", invalidates=(first,))
        second, newer = (await group.step(replaced, set_key("k", "2"), conditions=both)).done.ids
        assert version < second < newer
        assert await group.read() == [b"b"]
        old = await group.step(entry("c"), set_key("k", "3"), conditions=both)
        assert (old.failed.condition, old.failed.actual) == (0, newer)
        late = await group.step(
            entry("c"), set_key("k", "3"), conditions=(version_is("k", newer), last_is(first))
        )
        assert (late.failed.condition, late.failed.actual) == (1, second)
        assert await group.read() == [b"b"]
        assert await group.value("k") == (newer, b"2")
        absent = await group.step(set_key("n", "1"), conditions=(version_is("n", 0),))
        assert absent.done.ids

    with_journal(work)


def batch_of(group, *texts: str, sequence: int, **more: Any) -> jb.JournalStepsRequest:
    return jb.JournalStepsRequest(
        tablet_id=group.tablet, client_id=b"b" * 16, sequence=sequence, first_outstanding=sequence,
        steps=[jb.JournalStep(changes=[entry(t)], **more) for t in texts],
    )  # fmt: skip


def test_batch_of_steps_is_one_operation_and_has_a_result_for_each_step():
    async def work(group):
        request = batch_of(group, "a", "b", sequence=1, conditions=[last_is(0)])
        answer = await group.ask(group.leader, methods.JOURNAL_STEPS, request)
        first, second = answer.results
        assert (first.done.ids[0], answer.duplicate) == (second.failed.actual, False)
        again = await group.ask(group.leader, methods.JOURNAL_STEPS, request)
        assert (list(again.results), again.duplicate) == (list(answer.results), True)
        assert again.timestamp == answer.timestamp
        assert await group.read() == [b"a"]
        request = batch_of(group, *"bcd", sequence=2)
        answer = await group.ask(group.leader, methods.JOURNAL_STEPS, request)
        ids = [r.done.ids[0] for r in answer.results]
        assert ids == list(range(ids[0], ids[0] + 3)), "of one operation"
        assert await group.read() == [b"a", b"b", b"c", b"d"]

    with_journal(work)


def test_invalid_batch_is_refused_without_effect():
    async def work(group):
        for texts, what in (((), "has 0 steps"), (("x",) * 65, "has 65 steps")):
            request = batch_of(group, *texts, sequence=1)
            refusal = await refused(group.ask(group.leader, methods.JOURNAL_STEPS, request))
            assert isinstance(refusal, InvalidArgument)
            assert what in refusal.message
        request = batch_of(group, "a", "x" * (2 << 20), sequence=1)
        refusal = await refused(group.ask(group.leader, methods.JOURNAL_STEPS, request))
        assert isinstance(refusal, TooLarge)
        assert await group.read() == []

    with_journal(work)


BAD = {
    "nothing": (jb.JournalStepRequest(), InvalidArgument),
    "an empty change": (jb.JournalStepRequest(changes=[jb.JournalChange()]), InvalidArgument),
    "an empty condition": (
        jb.JournalStepRequest(changes=[entry("a")], conditions=[jb.JournalCondition()]),
        InvalidArgument,
    ),
    "an entry of 2 MiB": (jb.JournalStepRequest(changes=[entry("x" * (2 << 20))]), TooLarge),
    "100 changes": (jb.JournalStepRequest(changes=[entry("x")] * 100), InvalidArgument),
    "a log without a name": (jb.JournalStepRequest(changes=[entry("x", log="")]), InvalidArgument),
}


def test_invalid_steps_are_refused_without_effect():
    async def work(group):
        await group.append("a")
        for what, (request, kind) in BAD.items():
            refusal = await refused(
                group.step(*request.changes, conditions=tuple(request.conditions))
            )
            assert isinstance(refusal, kind), f"{what}: {refusal}"
        short = await refused(group.step(entry("x"), client=b"short"))
        assert "client_id of 16 bytes" in short.message
        assert await group.read() == [b"a"]

    with_journal(work)
