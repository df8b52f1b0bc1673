"""Reads that continue after a failure or a change of ranges: no row is read twice or left out."""

from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from nyala.client.core import ClientOptions
from nyala.client.read.plan import PlannedTokens
from nyala.client.read.progress import ScanProgress
from nyala.client.read.read_spec import ReadSpec
from nyala.client.read.side_by_side import OfTablet
from nyala.client.scan import Scan
from nyala.common.errors import RangesChanged, Unavailable
from nyala.common.ids import TabletId
from nyala.env.env import system_env
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.client.support.client_bulk import opened
from tests.unit.client.support.driving import driven

ROW = pa.record_batch({"k": [1], "v": [1]})


def test_rows_of_a_tablet_that_replaced_another_are_not_added_to_those_of_the_other():
    read = ScanProgress(pb.ScanToken(tablet_id="old"), None)
    read.move_to(TabletId("new"))
    assert read.token.tablet_id == "new"
    read.add(ROW)
    with pytest.raises(Unavailable, match="new was replaced by newer after 1 rows"):
        read.move_to(TabletId("newer"))


def test_feed_resumes_up_to_the_end_that_its_first_server_chose():
    token = pb.ScanToken(tablet_id="t", changes=True, since=3, at=9, limit=5)
    read = ScanProgress(token, None)
    read.set_header(pb.ScanHeader(at=9, through=7))
    assert read.add(ROW) is not None
    assert not read.resume("it has crashed")
    assert (read.token.at, read.token.limit) == (7, 0), "another server may choose another end"
    read.set_header(pb.ScanHeader(at=7, through=7))
    assert read.add(ROW).num_rows == 0, "it was delivered"
    assert read.add(ROW).num_rows == 1


def run(work: Any) -> Any:
    with pytest.raises(StopIteration) as ended:
        work.send(None)
    return ended.value.value


class Latest:
    """Plan of reads at the tablets' own times; notes the progress of the scan."""

    is_fixed = False

    def __init__(self) -> None:
        self.steps: list[str] = []

    async def make_tokens(self) -> PlannedTokens:
        return PlannedTokens(0, [pb.ScanToken(tablet_id="a")])

    def attempts(self) -> Any:
        return SimpleNamespace(progressed=lambda: self.steps.append("progress"))

    async def changed(self, _attempts: Any) -> None:
        self.steps.append("changed")

    def fix(self, _at: int) -> bool:
        return True


def latest_rows(ordered: bool, fails_after: list[int]) -> tuple[Latest, Iterator[pa.RecordBatch]]:
    """Return a scan whose runs fail because of a change of ranges after some batches."""
    plan = Latest()

    async def batches(_token: pb.ScanToken, **_: Any) -> AsyncIterator[pa.RecordBatch]:
        last = fails_after.pop(0)
        for k in range(3):
            if k == last:
                raise RangesChanged("newer ranges")
            yield pa.record_batch({"k": [k], "v": [k]})

    rpc: Any = None
    core = SimpleNamespace(
        plan=lambda *_: plan,
        env=system_env(rpc),
        reader=SimpleNamespace(run=batches),
        options=ClientOptions(),
    )
    client: Any = SimpleNamespace(core=core, run=run, iterate=driven)
    return plan, Scan(client, opened(), ReadSpec(latest=True, ordered=ordered)).to_batches()


def test_ordered_scan_of_latest_rows_does_not_begin_again_after_rows_were_delivered():
    _, found = latest_rows(True, [1, 9])
    assert next(found).column("k").to_pylist() == [0]
    with pytest.raises(
        Unavailable, match="after 1 rows of an ordered scan were read; run the scan"
    ):
        next(found)


def test_ordered_scan_of_latest_rows_begins_again_before_rows_were_delivered():
    plan, found = latest_rows(True, [0, 9])
    assert [k for batch in found for k in batch.column("k").to_pylist()] == [0, 1, 2]
    assert plan.steps == ["changed", "progress", "progress", "progress"], (
        "the deadline for changes of ranges begins anew with each batch"
    )


def test_tablet_that_was_read_is_not_read_again_after_a_change_of_ranges(monkeypatch):
    refusals = [RangesChanged("newer ranges")]

    class Plan:
        is_fixed = True

        async def make_tokens(self) -> PlannedTokens:
            return PlannedTokens(5, [pb.ScanToken(tablet_id=t) for t in "ab"])

        def attempts(self) -> Any:
            return SimpleNamespace(progressed=lambda: None)

        async def changed(self, _attempts: Any) -> None:
            return None

        def fix(self, at: int) -> bool:
            return at == 5

    class Reading:
        def __init__(self, _env: Any, _reader: Any, tokens: list[pb.ScanToken], _on: Any) -> None:
            self._tokens = tokens

        async def run(self) -> AsyncIterator[OfTablet]:
            for token in self._tokens:
                if token.tablet_id == "b" and refusals:
                    raise refusals.pop()
                key = "ab".index(token.tablet_id)
                yield OfTablet(token, pa.record_batch({"k": [key], "v": [0]}))
                yield OfTablet(token, None)

    monkeypatch.setattr("nyala.client.calls.scanning.SideBySide", Reading)
    core = SimpleNamespace(plan=lambda table, spec: Plan(), env=None, reader=None)
    client: Any = SimpleNamespace(core=core, run=run, iterate=driven)
    found = Scan(client, opened(), ReadSpec()).to_batches()
    assert [k for batch in found for k in batch.column("k").to_pylist()] == [0, 1]
