"""A write of many rows: its deadline counts from its progress, and an error has the outcome of each row."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.client.results import PartlyWritten
from nyala.client.write.upload import MAX_WINDOWS
from nyala.common.errors import (
    NyalaError,
    OutcomeUnknown,
    SessionExpired,
    Throttled,
    TimedOut,
    TooLarge,
    Unavailable,
)
from nyala.common.partitioning.partition import PartitionSchema
from tests.unit.client.support.client_bulk import opened
from tests.unit.client.support.uploads import ROWS, TIMEOUT_MS, Tablets, all_of, scenario, some


def test_load_with_progress_may_exceed_deadline():
    async def work(upload, tablets, loop):
        return await all_of(upload, some(0, 10_000))

    written, tablets = scenario(work, each_ms=TIMEOUT_MS - 100)
    assert written.rows == 10_000
    assert tablets.requests * (TIMEOUT_MS - 100) > 40 * TIMEOUT_MS


def test_load_without_progress_ends_at_deadline():
    async def work(upload, tablets, loop):
        with pytest.raises(TimedOut):
            await all_of(upload, some(0, 10_000))
        return loop.time()

    ended_s, tablets = scenario(work, each_ms=TIMEOUT_MS + 1)
    assert ended_s < 2 * TIMEOUT_MS / 1000
    assert not tablets.acknowledged


def test_idle_source_time_does_not_count_towards_deadline():
    async def work(upload, tablets, loop):
        for at in range(3):
            await upload.take(some(at * 10, at * 10 + 10))
            await loop.delay(3 * TIMEOUT_MS * 1000)  # the source is slow
            assert len(tablets.acknowledged) == 10, "rows are sent while the source is slow"
            tablets.acknowledged.clear()
        return await upload.finish()

    written, _ = scenario(work)
    assert written.rows == 30


def check(error: PartlyWritten, tablets: Tablets, rows: int) -> None:
    """Check that the error has the outcome of each row."""
    unknown, unwritten = error.unknown.to_pylist(), error.not_written.to_pylist()
    assert set(unknown) == tablets.unknown
    below = set(range(error.next_row)) - set(unknown) - set(unwritten)
    assert below == tablets.acknowledged
    assert error.rows == len(tablets.acknowledged)
    assert all(r < error.next_row for r in [*unknown, *unwritten])
    assert not {r for r in tablets.acknowledged | tablets.unknown if r >= error.next_row}
    again = [*unknown, *unwritten, *range(error.next_row, rows)]
    assert sorted([*again, *tablets.acknowledged]) == list(range(rows)), (
        "each row is written or reported exactly once"
    )


FATES = st.sampled_from(
    [TooLarge("too large"), Throttled("full"), OutcomeUnknown("?"), SessionExpired("long ago"),
     Unavailable("gone"), NyalaError("a bug")]
)  # fmt: skip


@settings(max_examples=40)
@given(st.integers(0, 1_999), FATES)
def test_error_of_interrupted_write_gives_outcome_of_each_row(bad, error):
    async def work(upload, tablets, loop):
        with pytest.raises(NyalaError) as raised:
            await all_of(upload, some(0, 2_000))
        return raised.value

    outcome, tablets = scenario(work, lambda rows: error if bad in rows else None)
    if type(error) is NyalaError:  # the outcome of those rows is unknown too
        tablets.unknown.update(r for r in tablets.taken if r not in tablets.acknowledged)
    assert isinstance(outcome, PartlyWritten)
    cause: Any = outcome.__cause__
    assert cause is error
    check(outcome, tablets, 2_000)
    assert error.message in str(outcome)


def test_rows_of_only_request_are_unknown_after_interrupt():
    async def work(upload, tablets, loop):
        await upload.take(some(0, 1))
        await loop.delay(1_000)
        assert tablets.taken == [0], "its request is under way"
        return await upload.interrupt(KeyboardInterrupt())

    error, tablets = scenario(work)
    tablets.unknown.add(0)
    assert isinstance(error, PartlyWritten)
    assert isinstance(error.__cause__, KeyboardInterrupt)
    check(error, tablets, 1)


@settings(max_examples=40)
@given(st.integers(0, 1_999), st.sets(st.integers(0, 1_999), min_size=1, max_size=5))
def test_rows_of_voided_requests_are_not_reported_as_written(bad, failing):
    async def work(upload, tablets, loop):
        async def load() -> None:
            for at in range(0, 2_000, 500):
                await upload.take(some(at, at + 500))
            await upload.finish()

        with pytest.raises(NyalaError) as raised:
            await load()
        return raised.value

    outcome, tablets = scenario(
        work, lambda rows: Throttled("full") if bad in rows else None, bad_rows=failing
    )
    if not isinstance(outcome, PartlyWritten):
        assert not tablets.acknowledged
        return
    codes = dict(zip(*(outcome.errors.column(n).to_pylist() for n in ("row", "code")), strict=True))
    errors = set(codes)
    assert {row for row, code in codes.items() if code != "voided"} <= failing
    assert not errors & set(outcome.not_written.to_pylist()), "a row has one outcome"
    below = set(range(outcome.next_row)) - set(outcome.not_written.to_pylist()) - errors
    assert below == tablets.acknowledged
    assert outcome.rows == len(tablets.acknowledged)


@pytest.mark.parametrize("changed", [False, True])
def test_windows_before_and_after_a_change_of_ranges_do_not_overlap(changed):
    async def work(upload, tablets, loop):
        await upload.take(some(0, 10))
        await loop.delay(1_000)  # the first window is in flight
        tablets.table.ranges_version += changed
        await upload.take(some(10, 20))
        await upload.finish()
        return tablets.most

    most, _ = scenario(work, each_ms=50)
    assert (most > 10) != changed


def test_rows_grouped_before_a_second_change_of_ranges_do_not_overlap_those_after_it():
    async def work(upload, tablets, loop):
        await upload.take(some(0, 10))
        await loop.delay(1_000)
        tablets.table.ranges_version += 1
        await upload.take(
            some(10, 20)
        )  # grouped by these ranges, while the window before is in flight
        await loop.delay(1_000)
        whole = opened(PartitionSchema())  # rows have other partitions now
        whole.ranges_version = tablets.table.ranges_version + 1
        tablets.table.update_ranges(whole)
        await loop.delay(60_000)  # the second window is in flight
        await upload.take(some(20, 30))
        await upload.finish()
        return tablets.most

    most, tablets = scenario(work, each_ms=50)
    assert most == 10, "rows of one key may be in two tablets"
    assert [row // 10 for row in tablets.taken] == [0] * 10 + [1] * 10 + [2] * 10


def test_cause_is_raised_alone_when_nothing_took_effect():
    async def work(upload, tablets, loop):
        with pytest.raises(TooLarge):
            await all_of(upload, some(0, 2_000))

    _, tablets = scenario(work, lambda rows: TooLarge("too large"))
    assert not tablets.acknowledged


def test_single_request_of_unknown_outcome_is_raised_unwrapped():
    async def work(upload, tablets, loop):
        with pytest.raises(OutcomeUnknown) as raised:
            await all_of(upload, some(0, 1))
        return raised.value

    outcome, _ = scenario(work, lambda rows: OutcomeUnknown("?"))
    assert not isinstance(outcome, PartlyWritten)


def test_source_is_read_only_with_free_capacity():
    window = ROWS * 4 * 15 // 16

    async def work(upload, tablets, loop):
        taken = 0
        for at in range(100):
            await upload.take(some(at * 100, at * 100 + 100))
            taken += 100
            assert taken - len(tablets.acknowledged) <= (MAX_WINDOWS + 1) * window + 100
        return await upload.finish()

    written, tablets = scenario(work)
    assert written.rows == 10_000
    assert tablets.requests <= 10_000 / 25, "small batches are sent together"


def test_source_error_is_raised_after_writing_rows_already_read():
    broken = ValueError("the source broke")

    async def work(upload, tablets, loop):
        await upload.take(some(0, 500))
        return await upload.stop(broken)

    outcome, _ = scenario(work)
    assert isinstance(outcome, PartlyWritten)
    assert (outcome.rows, outcome.next_row, outcome.__cause__) == (500, 500, broken)
    assert "the source broke" in str(outcome)

    async def nothing(upload, tablets, loop):
        return await upload.stop(broken)

    outcome, _ = scenario(nothing)
    assert outcome is broken


def test_load_reports_progress_when_client_is_closed():
    async def work(upload, tablets, loop):
        loading = asyncio.ensure_future(all_of(upload, some(0, 10_000)))
        await loop.delay(40_000)
        upload.abandon()
        with pytest.raises(PartlyWritten) as raised:
            await loading
        return raised.value

    outcome, tablets = scenario(work)
    tablets.unknown.update(r for r in tablets.taken if r not in tablets.acknowledged)
    check(outcome, tablets, 10_000)
    assert "closed" in str(outcome)
