"""Operations of a coordinator over a log: intent and done, what they make of no effect, takeovers."""

import random
from typing import Any

import pytest

from nyala.client.journal.items import Entry, Invalidated
from nyala.common.errors import ConditionFailed
from nyala.wire.proto import journal_pb2 as jb
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.unit.client.support.journal_scenarios import (
    Scenario,
    append,
    invalidate,
    log_last,
    scenario,
    set_key,
    taken,
)
from tests.unit.client.support.journal_servers import JournalServers

LOG = "tables"


class Crashed(Exception):
    """The coordinator crashed."""


class Coordinator:
    """Creates, splits and drops tables. It appends only if the last entry of the log is its own.

    Attributes:
        ids: ids of the valid entries about each table, as followed or written.
        left: number of steps before it crashes.
    """

    def __init__(self, s: Scenario, left: int = 1 << 30) -> None:
        self._s = s
        self._last = 0
        self.ids: dict[str, list[int]] = {}
        self.intents: dict[int, tuple[str, str]] = {}
        self.left = left

    async def take_over(self) -> None:
        """Read the valid entries, and complete the operations that are not done, in order."""
        for entry_id, data in await self._s.read(LOG):
            self._note(entry_id, data)
        self._last = await self._s.core.log(self._s.journal, LOG).last_id()
        for intent, (kind, table) in sorted(self.intents.items()):
            await self._complete(kind, table, intent)

    def _note(self, entry_id: int, data: bytes) -> None:
        kind, table = data.decode().split()
        self.ids.setdefault(table, []).append(entry_id)
        if kind != "alive":
            self.intents[entry_id] = kind, table

    async def _step(self, *changes: jb.JournalChange) -> int:
        if not self.left:
            raise Crashed
        self.left -= 1
        (self._last,) = await self._s.step(*changes, require=[log_last(LOG, self._last)])
        return self._last

    async def do(self, kind: str, table: str) -> None:
        """Execute an operation: its intent is the commit point."""
        intent = await self._step(append(LOG, f"{kind} {table}".encode()))
        self._note(intent, f"{kind} {table}".encode())
        await self._complete(kind, table, intent)

    async def _complete(self, kind: str, table: str, intent: int) -> None:
        """Append what the operation leaves; all that it makes of no effect becomes invalid."""
        if kind == "drop":
            await self._step(invalidate(LOG, *self.ids[table]))
            del self.ids[table]
        else:
            done = append(LOG, b"alive " + table.encode(), *self.ids[table])
            self.ids[table] = [await self._step(done)]
        del self.intents[intent]

    @property
    def tables(self) -> set[str]:
        return set(self.ids)


async def entries(s: Scenario) -> list[bytes]:
    return [data for _, data in await s.read(LOG)]


@pytest.mark.row("S3.20", "S3.23")
@scenario
async def test_operation_is_two_entries_and_second_invalidates_first(s):
    one = Coordinator(s, left=1)
    with pytest.raises(Crashed):
        await one.do("create", "t")
    assert await entries(s) == [b"create t"]
    assert len(s.servers.group) == 1
    two = Coordinator(s)
    await two.take_over()
    assert await entries(s) == [b"alive t"]
    assert len(s.servers.group) == 2, "the entry that ends it also invalidates"


@pytest.mark.row("S3.24")
@scenario
async def test_follower_knows_latest_id_of_each_table_from_tail(s):
    one = Coordinator(s)
    await one.do("create", "a")
    events = s.core.tail(s.core.log(s.journal, LOG))
    held: dict[int, bytes] = {}

    async def follow() -> None:
        """Read until the latest entry of the coordinator, and what it invalidated, has come."""
        while not held.keys() >= {ids[-1] for ids in one.ids.values()}:
            (page,) = await taken(events, 1)
            for event in page:
                if isinstance(event, Entry):
                    held[event.id] = event.data
                elif isinstance(event, Invalidated):
                    for gone in event.ids:
                        held.pop(gone, None)

    await follow()
    for kind, table in (("create", "b"), ("split", "a")):
        await one.do(kind, table)
        await follow()
    await events.aclose()
    assert len(held) == 2, "one entry of each table"
    assert {data.split()[1].decode(): [at] for at, data in held.items()} == one.ids
    latest = next(at for at, data in held.items() if data == b"alive a")
    await s.append(LOG, b"alive a", latest)
    assert await entries(s) == [b"alive b", b"alive a"]


@pytest.mark.row("S3.25")
@scenario
async def test_drop_invalidates_entries_of_other_operations_of_the_table(s):
    """An intent to split that nobody completed, and what its creation left, go with the table."""
    one = Coordinator(s, left=5)
    await one.do("create", "t")
    await one.do("create", "other")
    with pytest.raises(Crashed):
        await one.do("split", "t")
    assert await entries(s) == [b"alive t", b"alive other", b"split t"]
    created, _, split = (at for at, _ in await s.read(LOG))
    (drop,) = await s.step(append(LOG, b"drop t"))
    await s.step(invalidate(LOG, drop, created, split))
    assert await entries(s) == [b"alive other"]
    two = Coordinator(s)
    await two.take_over()
    assert two.tables == {"other"}


@pytest.mark.row("S3.26")
@pytest.mark.parametrize("seed", range(3))
def test_valid_entries_are_minimal_after_any_operations_and_crashes(seed):
    async def work(s: Scenario) -> None:
        draw, now = random.Random(seed), Coordinator(s)
        expected: set[str] = set()
        for number in range(60):
            kind = draw.choice(("create", "split", "drop")) if expected else "create"
            table = f"t{number}" if kind == "create" else draw.choice(sorted(expected))
            now.left = draw.choice((0, 1, 2, 2, 2))
            committed = now.left > 0
            try:
                await now.do(kind, table)
            except Crashed:
                now = Coordinator(s)
                await now.take_over()
            if committed:
                expected = expected - {table} if kind == "drop" else expected | {table}
            assert now.tables == expected
            assert sorted(await entries(s)) == sorted(b"alive " + t.encode() for t in expected)
        fresh = Coordinator(s)
        await fresh.take_over()
        assert fresh.ids == now.ids

    async def main(loop: SimLoop) -> None:
        await work(await Scenario(loop, JournalServers(loop)).open())

    run(main, max_time_s=3000)


@pytest.mark.row("S3.60")
@scenario
async def test_deposed_coordinator_appends_nothing(s):
    old, new = Coordinator(s), Coordinator(s)
    await old.do("create", "a")
    await new.take_over()
    await new.do("create", "b")
    before = await s.read(LOG)
    for kind, table in (("create", "c"), ("drop", "a")):
        with pytest.raises(ConditionFailed) as failed:
            await old.do(kind, table)
        assert failed.value.last == before[-1][0], "the id of the one that took over"
    assert await s.read(LOG) == before
    await new.do("drop", "a")
    assert await entries(s) == [b"alive b"]


@pytest.mark.row("S3.66")
@scenario
async def test_terms_of_leadership_have_growing_ids_also_of_one_leader(s):
    """A leads, B, and A again: each term is identified by the id of the entry that established it."""
    terms: list[int] = []
    for leader in (b"A", b"B", b"A"):
        terms.append(await s.append("leader", leader, *terms[-1:]))
    assert terms == sorted(set(terms))
    assert await s.read("leader") == [(terms[-1], b"A")]
    with pytest.raises(ConditionFailed):
        await s.append("leader", b"A", last=terms[0])
    deleted = jb.JournalChange(delete_log="leader")
    await s.step(deleted)
    assert await s.append("leader", b"A") > terms[-1], "also in a log that was created again"


@pytest.mark.row("S3.67")
@scenario
async def test_steps_of_an_older_term_are_refused_whatever_they_change(s):
    (first,) = await s.step(set_key("leader", b"A"))
    (second,) = await s.step(set_key("leader", b"B"))
    for changes in (
        [append("a", b"old")],
        [set_key("k", b"old")],
        [append("a", b"old"), set_key("leader", b"A")],
    ):
        fence = jb.JournalCondition(key_version=jb.KeyVersion(key="leader", version=first))
        with pytest.raises(ConditionFailed) as failed:
            await s.step(*changes, require=[log_last("a", 0), fence])
        assert failed.value.last == second, "the term that leads"
    assert await s.read("a") == []
    fence = jb.JournalCondition(key_version=jb.KeyVersion(key="leader", version=second))
    await s.step(append("a", b"new"), require=[fence])
    assert [data for _, data in await s.read("a")] == [b"new"]


RECORDS: dict[str, Any] = {
    "fields left out": pb.HeartbeatResponse(),
    "a list of texts": pb.HeartbeatResponse(master_addresses=["a:1", "é:2", ""], leader=True),
    "nested lists": pb.TabletReport(
        tablet_id="t", consensus=pb.ConsensusState(members=[pb.Member(uuid="u", voter=True)] * 3)
    ),
    "many": pb.HeartbeatResponse(master_addresses=["host:7051"] * 5000),
}


@pytest.mark.row("S3.19")
@scenario
async def test_entries_hold_serialised_records_with_optional_fields_and_lists(s):
    sent = [record.SerializeToString() for record in RECORDS.values()]
    sent += [bytes(range(256)), b"\0" * 9]
    for data in sent:
        await s.append("records", data)
    read = [data for _, data in await s.read("records")]
    events = s.core.tail(s.core.log(s.journal, "records"))
    told: list[bytes] = []
    while len(told) < len(sent):
        (page,) = await taken(events, 1)
        told += [event.data for event in page if isinstance(event, Entry)]
    await events.aclose()
    assert read == told == sent
    for data, record in zip(read, RECORDS.values(), strict=False):
        assert type(record).FromString(data) == record
