"""Several failures of one write of many rows: the reported one, and the order of row errors."""

from typing import Any

import pytest

from nyala.client.results import PartlyWritten
from nyala.client.write.batcher import Batcher
from nyala.common.errors import (
    NyalaError,
    OutcomeUnknown,
    SessionExpired,
    Throttled,
    TimedOut,
    TooLarge,
)
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.client.support.uploads import ROWS, Tablets, all_of, scenario, some

UNKNOWN = [OutcomeUnknown("?"), SessionExpired("long ago"), NyalaError("a bug")]


@pytest.mark.parametrize("unknown", UNKNOWN, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("first", [True, False])
def test_refusal_does_not_hide_unknown_outcome(unknown, first):
    """Of the requests of one window one is refused, another is not answered, whichever ends first."""
    seen: list[list[int]] = []

    def failure_of(rows: list[int]) -> NyalaError | None:
        seen.append(rows)
        return unknown if (len(seen) == 1) is first else TooLarge("too large")

    async def work(upload, tablets, loop):
        with pytest.raises(PartlyWritten) as raised:
            await all_of(upload, some(0, 50))
        return raised.value

    outcome, _ = scenario(work, failure_of)
    assert len(seen) > 2, "the window has rows of several tablets"
    assert outcome.__cause__ is unknown
    assert unknown.message in str(outcome)


@pytest.mark.parametrize("unknown", UNKNOWN, ids=lambda e: type(e).__name__)
def test_write_with_possible_effect_is_not_reported_as_without_effect(unknown, monkeypatch):
    """Its only request is not answered, and the next rows could not be routed for lack of a leader master."""
    late = TimedOut("no leader master")
    group = Batcher.group

    async def only_once(self: Batcher, call: Any, window: Any, first: int) -> Any:
        if first:
            raise late
        return await group(self, call, window, first)

    monkeypatch.setattr(Batcher, "group", only_once)

    async def work(upload, tablets, loop):
        await upload.take(some(0, 1))
        await loop.delay(1_000)
        with pytest.raises(NyalaError) as raised:
            await all_of(upload, some(1, 500))
        return raised.value

    outcome, tablets = scenario(work, lambda rows: unknown, each_ms=20)
    assert tablets.requests == 1
    assert outcome is unknown


def test_row_errors_come_in_the_order_of_the_rows(monkeypatch):
    """The result is the same for any order of answers."""
    deliver = Tablets.deliver

    async def refusing(self: Tablets, *request: Any) -> pb.WriteResult:
        self.each_ms = max(1, self.each_ms - 1)  # each later request is answered sooner
        result = await deliver(self, *request)
        count = result.rows
        for row in range(0, count, 3):
            result.row_errors.add(row=row, code="not_found", message="m")
            result.rows -= 1
        return result

    monkeypatch.setattr(Tablets, "deliver", refusing)

    async def work(upload, tablets, loop):
        return await all_of(upload, some(0, 40 * ROWS))

    written, _ = scenario(work, each_ms=40)
    rows = [row for row, _, _ in written.errors]
    assert len(rows) > 10 * ROWS
    assert rows == sorted(rows)


def test_first_failure_is_raised_when_nothing_took_effect():
    failures = [Throttled("full"), TooLarge("too large")]
    coming = iter(failures)

    async def work(upload, tablets, loop):
        with pytest.raises(NyalaError) as raised:
            await all_of(upload, some(0, 20))
        return raised.value

    outcome, tablets = scenario(work, lambda rows: next(coming, failures[1]))
    assert outcome is failures[0]
    assert tablets.requests > 1


def test_batches_with_different_columns_are_not_combined():
    async def work(upload, tablets, loop):
        for at in range(0, 400, 10):
            rows = some(at, at + 10)
            await upload.take(rows if at % 20 else rows.select(["v", "k"]))
        return await upload.finish()

    written, tablets = scenario(work)
    assert written.rows == 400
    assert tablets.acknowledged == set(range(400))
