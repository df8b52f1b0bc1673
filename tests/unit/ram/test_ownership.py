"""Ownership that each operation brings to the servers by itself, and what a table's records keep."""

from typing import Any

import pytest

from nyala.ram.ids import LAST_HASH
from nyala.ram.state import CoordinatorState, parse
from nyala.wire.proto import ram_pb2 as pb
from tests.unit.ram.support.ensemble import SimEnsemble, ensemble
from tests.unit.ram.support.requests import create, drop, started

HASHES = range(0, LAST_HASH, LAST_HASH // 30)


def owners(e: SimEnsemble, table_id: int) -> set[int]:
    """Return the numbers of owners that keys of a table have."""
    return {len(e.owners(table_id, h)) for h in HASHES}


@pytest.mark.row("S3.1", "S3.50")
@ensemble
async def test_servers_own_their_tablets_when_a_create_is_answered_and_none_when_a_drop_is(e):
    await started(e)
    client = await e.client()
    await e.wait_s(0.2)  # no ping is due, which would send them too
    for _ in range(3):
        made = (await client.call(*create("t", 9), 20_000)).table.id
        assert owners(e, made) == {1}
        await client.call(*drop("t"), 20_000)
        assert owners(e, made) == {0}


@pytest.mark.row("S3.13", "S3.33")
@ensemble
async def test_servers_own_what_they_recover_before_the_recovery_ends(e):
    seen: list[set[int]] = []

    def look(name: str) -> None:
        if name == "before recover_tablets done":
            seen.append(owners(e, 1))

    await e.coordinator("c0", look)
    for n in range(3):
        await e.server(f"s{n}")
    await e.until(e.settled)
    client = await e.client()
    await client.call(*create("t", 9), 20_000)
    await e.kill("s1")
    await e.until(e.settled)
    assert seen == [{1}], "the takers have been told"


@pytest.mark.row("S3.1", "S3.17")
@ensemble
async def test_new_leader_sends_each_server_all_of_its_tablets_before_it_pings(e):
    await started(e, coordinators=1)
    client = await e.client()
    made = (await client.call(*create("t", 9), 20_000)).table.id
    await e.kill("c0")
    for server in e.servers.values():
        server.member.owned.clear()
    coordinator = await e.coordinator("c1")
    await e.until(lambda: coordinator.upkeep is not None)
    await e.until(e.settled)
    assert owners(e, made) == {1}


@pytest.mark.row("S3.19")
def test_fields_of_a_later_version_stay_in_the_records_of_a_table():
    later = b"\xfa\x06\x05later"  # field 111 of a table
    table = pb.Table(id=1, name="t", tablets=[pb.Mapping(first=0, last=LAST_HASH)])
    data = pb.Record(alive_table=table).SerializeToString()
    record: Any = pb.Record(alive_table=pb.Table.FromString(table.SerializeToString() + later))
    assert parse(data).WhichOneof("what") == "alive_table"
    state = CoordinatorState()
    state.apply(parse(record.SerializeToString()))
    state.apply(pb.Record(split_tablet=pb.SplitTablet(table_id=1, split_hash=5)))
    (described,) = state.describe()
    assert len(described.alive_table.tablets) == 2
    assert later in described.SerializeToString()
    empty = pb.Record(server_up=pb.ServerUp(id=pb.ServerId(index=1, generation=1)))
    state.apply(parse(empty.SerializeToString()))
    (up,) = state.servers.servers.values()
    assert (up.up.address, list(up.up.roles), up.up.read_mb_s) == ("", [], 0), "fields are optional"
