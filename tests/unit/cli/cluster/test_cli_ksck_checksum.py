"""Findings of ksck from the replicas' checksums: equal, different, silent, without data."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.errors import HistoryGone, NotLeader, NyalaError, Unavailable
from nyala.machines import registry
from nyala.operate.ksck.checksum import SCHEMA_TRIES, Sum, as_dicts, compare
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import reads_pb2
from tests.unit.machines.support.kinds import KINDS

AT = 77


class World:
    """Three replicas of one tablet of a kind, of which b leads."""

    def __init__(self, kind: Any, **answers: object) -> None:
        self.kind = kind
        self.answers = answers
        self.asked: list[tuple[str, int]] = []
        self.dropped_at = 0
        self.now_us = 0
        env = SimpleNamespace(rpc=self, clock=SimpleNamespace(monotonic_us=lambda: self.now_us))
        masters = SimpleNamespace(call=self.locate)
        self.core: Any = SimpleNamespace(env=env, masters=masters, tables=self.tables)

    async def tables(self, *, all_kinds: bool) -> list[pb.TableSummary]:
        assert all_kinds
        return [pb.TableSummary(id="t1", name="t", kind=self.kind.number)]

    async def locate(self, method: object, _request: object, **_: object) -> object:
        assert method is methods.TABLET_LOCATIONS
        replicas = [
            pb.ReplicaLocation(uuid=u, address=f"{u}:1", leader=u == "b", voter=True) for u in "abc"
        ]
        place = pb.TabletLocation(id="x", replicas=replicas, dropped_at=self.dropped_at)
        if self.dropped_at:
            place.state = "DROPPED"
            return pb.TabletLocationsResponse(dropped=[place])
        return pb.TabletLocationsResponse(tablets=[place])

    async def call(self, address: str, method: object, request: Any, **_: object) -> object:
        assert method is methods.CHECKSUM
        name = address[0]
        self.asked.append((name, request.at))
        answer: Any = self.answers.get(name, {})
        if callable(answer):
            answer = answer(self)
        if isinstance(answer, NyalaError):
            raise answer
        if not request.at and name != "b" and not answer.get("witness"):
            raise NotLeader("another one leads")
        return reads_pb2.ChecksumResponse(**{"at": AT, "rows": 10, "checksum": 5} | answer)

    def compare(self) -> tuple[list[Sum], list[str]]:
        return asyncio.run(compare(self.core, 60_000))


@KINDS
def test_equal_replicas_pass_checksum_at_leader_time(kind):
    world = World(kind)
    sums, problems = world.compare()
    assert problems == []
    assert world.asked == [("b", 0), ("a", AT), ("c", AT)]
    assert {(s.at, s.rows, s.checksum) for s in sums} == {(AT, 10, "0000000000000005")}
    assert as_dicts(sums)[0]["address"] == "b:1"


@pytest.mark.row("A12")
@pytest.mark.parametrize("other", [{"checksum": 6}, {"rows": 9}])
@KINDS
def test_differing_replica_is_named(kind, other):
    sums, [problem] = World(kind, c=other).compare()
    where, items = f"{kind.name} t, tablet x", kind.items_name
    assert problem.startswith(f"{where}: its replicas differ at 77: b:1 has 10 {items}, ")
    assert "c:1 has" in problem
    assert len(sums) == 3


@KINDS
def test_witness_is_skipped_with_notice(kind):
    sums, problems = World(kind, b={"witness": True, "at": 0}, a={}, c={}).compare()
    assert len(problems) == 2, "without a leader there is no common time"
    sums, problems = World(kind, c={"witness": True, "at": 0}).compare()
    assert problems == []
    assert [s.note for s in sums] == ["", "", "skipped: a witness, it has no data"]


@pytest.mark.row("A12")
@KINDS
def test_unresponsive_replica_is_a_problem_and_others_are_compared(kind):
    sums, problems = World(kind, a=Unavailable("it is gone"), c={"checksum": 6}).compare()
    assert problems[0].endswith("the replica on a:1 was not compared: it is gone")
    assert "its replicas differ" in problems[1]
    assert "a:1" not in problems[1]
    assert len(sums) == 3


@KINDS
def test_checksums_of_table_altered_meanwhile_are_computed_again(kind):
    def learns(world: World) -> dict[str, int]:
        return {"schema_version": 0 if len(world.asked) < 4 else 1, "checksum": 5}

    new = {"schema_version": 1}
    world = World(kind, a=new, b=new, c=learns)
    assert world.compare()[1] == []
    assert len(world.asked) == 6
    world = World(kind, a=new, b=new)
    [problem] = world.compare()[1]
    assert "different versions of the definition" in problem
    assert len(world.asked) == 3 * SCHEMA_TRIES


@KINDS
def test_checksum_retries_are_bounded(kind):
    def late(world: World) -> dict[str, int]:
        world.now_us += 60_000_000
        return {}

    _, problems = World(kind, b=late).compare()
    assert [p.rpartition(": ")[2] for p in problems] == ["there was no time left"] * 2


def test_checksums_of_dropped_range_are_taken_at_its_last_time():
    world = World(registry.TABLE, c={"checksum": 6})
    world.dropped_at = AT + 1
    _, [problem] = world.compare()
    assert world.asked == [("b", AT), ("a", AT), ("c", AT)]
    assert problem.startswith("table t, tablet x (of a dropped range, kept for its history): its ")


def test_dropped_range_with_expired_history_is_no_problem():
    error = HistoryGone("gone")
    world = World(registry.TABLE, a=error, b=error, c=error)
    assert len(world.compare()[1]) == 3
    world.dropped_at = AT
    sums, problems = world.compare()
    assert problems == []
    assert {s.note for s in sums} == {"skipped: its history is over, and it will be deleted"}
