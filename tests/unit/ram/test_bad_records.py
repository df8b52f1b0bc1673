"""Records that no coordinator can apply, errors of the upkeep, and tables that reach the size of an entry."""

from typing import Any

import pytest

from nyala.common.errors import Corrupt, NyalaError, TooLarge, Unavailable
from nyala.ram.checks import MAX_TABLE_BYTES
from nyala.ram.coordinator import leader_address
from nyala.ram.ids import ServerId, equal_ranges
from nyala.ram.operations.record_operation import OperationContext
from nyala.ram.operations.tables import SplitTablet
from nyala.ram.state import CoordinatorState
from nyala.ram.tablet_map import mapping
from nyala.ram.upkeep import Upkeep
from nyala.wire.proto import ram_pb2 as pb
from tests.unit.client.support.journal_scenarios import append
from tests.unit.ram.support.ensemble import LOG, SimEnsemble, ensemble
from tests.unit.ram.support.requests import create, drop


def of_nobody() -> pb.Record:
    """Return a record of a server that never enlisted."""
    change = pb.ServerChange(id=pb.ServerId(index=9, generation=99), update_version=1)
    return pb.Record(server_needs_recovery=change)


async def append_beside(e: SimEnsemble, data: bytes) -> int:
    """Append an entry as another program does; return its id."""
    _, journal = await e.open("another program")
    return (await journal.step([], [append(LOG, data)])).ids[0]


@pytest.mark.row("S3.42")
@ensemble
async def test_record_of_an_unknown_server_ends_each_coordinator_with_its_position(e):
    ended: list[NyalaError] = []
    await e.coordinator("c0", on_end=ended.append)
    await e.coordinator("c1", on_end=ended.append)
    await e.server("s0")
    await e.until(e.settled)
    bad = await append_beside(e, b"done crash " + of_nobody().SerializeToString())
    await e.until(lambda: len(ended) == 2)
    for err in ended:
        assert isinstance(err, Corrupt)
        assert f"entry {bad}" in err.message
        assert "server 9.99, which never enlisted" in err.message
        assert f"nyala journal invalidate JOURNAL {LOG} {bad}" in err.message
    _, journal = await e.open("operator")
    assert await leader_address(journal, LOG) == "", "none leads"
    ended.clear()
    await e.coordinator("c2", on_end=ended.append)
    await e.until(lambda: ended)
    assert [type(err) for err in ended] == [Corrupt], "so does one that replays the log"
    step = journal.builder()
    step.invalidate(LOG, [bad])
    await journal.step(*step.parts)
    for name in "c0", "c1", "c2":
        await e.kill(name)
    await e.coordinator("c3")
    await e.until(e.settled)


@pytest.mark.parametrize("where", ["round", "settle"])
def test_error_of_the_upkeep_ends_the_coordinator_and_another_one_leads(where, monkeypatch):
    @ensemble
    async def scenario(e):
        ended: list[NyalaError] = []
        await e.coordinator("c0", on_end=ended.append)
        await e.server("s0")
        await e.until(e.settled)
        failing = e.coordinators["c0"].upkeep

        async def fail(_self: Any) -> None:
            raise ZeroDivisionError("of the test")

        name = "round" if where == "round" else "_recover"
        original = getattr(Upkeep, name)

        async def of_one(self: Upkeep) -> None:
            await (fail(self) if self is failing else original(self))

        monkeypatch.setattr(Upkeep, name, of_one)
        await e.until(lambda: ended)
        assert [type(err) for err in ended] == [Unavailable]
        assert "ZeroDivisionError('of the test')" in ended[0].message
        await e.kill("c0")
        await e.coordinator("c1")
        await e.until(e.settled)
        client = await e.client()
        await client.call(*create("t"), 20_000)
        await client.call(*drop("t"), 20_000)

    with pytest.raises(ZeroDivisionError):  # which the coordinator logs, and the simulator finds
        scenario()


def test_table_whose_record_is_nearly_as_large_as_an_entry_is_not_split():
    state = CoordinatorState()
    server = ServerId(1, 1)
    table = pb.Table(id=1, name="t", server_span=1)
    count = MAX_TABLE_BYTES // 20
    table.tablets.extend(mapping(first, last, server) for first, last in equal_ranges(count))
    state.tablets.add_table(table)
    split: Any = SplitTablet(OperationContext(state, None))  # type: ignore[arg-type]
    with pytest.raises(TooLarge, match=f"'t' has {count} tablets.*nothing took effect"):
        split.compute(pb.SplitTabletRequest(name="t", split_hash=5))
    del table.tablets[1:]
    table.tablets[0].last = (1 << 64) - 1
    state.tablets.add_table(table)
    assert split.compute(pb.SplitTabletRequest(name="t", split_hash=5))
