"""A write of many rows: its deadline counts from its progress, and an error says what became of each row."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.client.results import PartlyWritten
from nyala.client.write.upload import AHEAD
from nyala.common.errors import (
    NyalaError,
    OutcomeUnknown,
    SessionExpired,
    Throttled,
    TimedOut,
    TooLarge,
    Unavailable,
)
from tests.unit.client.support.uploads import ROWS, TIMEOUT_MS, Tablets, all_of, some, story


def test_a_load_may_take_longer_than_its_deadline_as_long_as_it_gets_on():
    async def work(upload, tablets, loop):
        return await all_of(upload, some(0, 10_000))

    written, tablets = story(work, each_ms=TIMEOUT_MS - 100)
    assert written.rows == 10_000
    assert tablets.requests * (TIMEOUT_MS - 100) > 40 * TIMEOUT_MS


def test_a_load_that_does_not_get_on_ends_after_its_deadline():
    async def work(upload, tablets, loop):
        with pytest.raises(TimedOut):
            await all_of(upload, some(0, 10_000))
        return loop.time()

    ended_s, tablets = story(work, each_ms=TIMEOUT_MS + 1)
    assert ended_s < 2 * TIMEOUT_MS / 1000
    assert not tablets.acknowledged


def test_time_without_anything_to_send_does_not_count():
    async def work(upload, tablets, loop):
        for at in range(3):
            await upload.take(some(at * 10, at * 10 + 10))
            await loop.delay(3 * TIMEOUT_MS * 1000)  # the source is slow
            assert len(tablets.acknowledged) == 10, "rows are sent while the source is slow"
            tablets.acknowledged.clear()
        return await upload.finish()

    written, _ = story(work)
    assert written.rows == 30


def check(error: PartlyWritten, tablets: Tablets, rows: int) -> None:
    """Check that the error tells the outcome of each row."""
    unknown, unwritten = error.unknown.to_pylist(), error.not_written.to_pylist()
    assert set(unknown) == tablets.unknown
    below = set(range(error.next_row)) - set(unknown) - set(unwritten)
    assert below == tablets.acknowledged
    assert error.rows == len(tablets.acknowledged)
    assert all(r < error.next_row for r in [*unknown, *unwritten])
    assert not {r for r in tablets.acknowledged | tablets.unknown if r >= error.next_row}
    again = [*unknown, *unwritten, *range(error.next_row, rows)]
    assert sorted([*again, *tablets.acknowledged]) == list(range(rows)), "each row once"


FATES = st.sampled_from(
    [TooLarge("too large"), Throttled("full"), OutcomeUnknown("?"), SessionExpired("long ago"),
     Unavailable("gone"), NyalaError("a bug")]
)  # fmt: skip


@settings(max_examples=40)
@given(st.integers(0, 1_999), FATES)
def test_the_error_of_a_write_that_ended_early_says_what_became_of_each_row(bad, error):
    async def work(upload, tablets, loop):
        with pytest.raises(NyalaError) as raised:
            await all_of(upload, some(0, 2_000))
        return raised.value

    told, tablets = story(work, lambda rows: error if bad in rows else None)
    if type(error) is NyalaError:  # nothing is known of those rows either
        tablets.unknown.update(r for r in tablets.taken if r not in tablets.acknowledged)
    assert isinstance(told, PartlyWritten)
    cause: Any = told.__cause__
    assert cause is error
    check(told, tablets, 2_000)
    assert error.message in str(told)


def test_when_nothing_took_effect_the_error_is_the_cause_alone():
    async def work(upload, tablets, loop):
        with pytest.raises(TooLarge):
            await all_of(upload, some(0, 2_000))

    _, tablets = story(work, lambda rows: TooLarge("too large"))
    assert not tablets.acknowledged


def test_one_request_of_unknown_outcome_is_just_that():
    async def work(upload, tablets, loop):
        with pytest.raises(OutcomeUnknown) as raised:
            await all_of(upload, some(0, 1))
        return raised.value

    told, _ = story(work, lambda rows: OutcomeUnknown("?"))
    assert not isinstance(told, PartlyWritten)


def test_rows_are_taken_only_when_there_is_room():
    window = ROWS * 4 * 15 // 16

    async def work(upload, tablets, loop):
        taken = 0
        for at in range(100):
            await upload.take(some(at * 100, at * 100 + 100))
            taken += 100
            assert taken - len(tablets.acknowledged) <= (AHEAD + 1) * window + 100
        return await upload.finish()

    written, tablets = story(work)
    assert written.rows == 10_000
    assert tablets.requests <= 10_000 / 25, "small batches travel together"


def test_the_source_breaks_and_what_was_taken_is_written():
    broken = ValueError("the source broke")

    async def work(upload, tablets, loop):
        await upload.take(some(0, 500))
        return await upload.stop(broken)

    told, _ = story(work)
    assert isinstance(told, PartlyWritten)
    assert (told.rows, told.next_row, told.__cause__) == (500, 500, broken)
    assert "the source broke" in str(told)

    async def nothing(upload, tablets, loop):
        return await upload.stop(broken)

    told, _ = story(nothing)
    assert told is broken


def test_a_client_closed_under_a_load_says_how_far_it_came():
    async def work(upload, tablets, loop):
        loading = asyncio.ensure_future(all_of(upload, some(0, 10_000)))
        await loop.delay(40_000)
        upload.abandon()
        with pytest.raises(PartlyWritten) as raised:
            await loading
        return raised.value

    told, tablets = story(work)
    tablets.unknown.update(r for r in tablets.taken if r not in tablets.acknowledged)
    check(told, tablets, 10_000)
    assert "closed" in str(told)
