"""Requests of clients take effect once each, by their operation ids, whatever others do meanwhile."""

import asyncio
from typing import Any

import pytest

from nyala.common.errors import InvalidArgument, NotFound
from nyala.ram import answers
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb
from tests.unit.ram.support.ensemble import ensemble
from tests.unit.ram.support.requests import create, drop, dump, started

HALF = 1 << 63


def numbered(request: Any, sequence: int) -> Any:
    """Return a request with the operation id of a client."""
    method, message = request
    message.operation.client, message.operation.sequence = "c", sequence
    return method, message


def split(name: str, at: int) -> Any:
    return methods.RAM_SPLIT_TABLET, pb.SplitTabletRequest(name=name, split_hash=at)


async def tables(client: Any) -> dict[int, tuple[str, int]]:
    found = await client.call(methods.RAM_TABLET_MAP, pb.TabletMapRequest(), 20_000)
    return {t.id: (t.name, len(t.tablets)) for t in found.tables}


@pytest.mark.row("S3.18")
@ensemble
async def test_requests_sent_again_after_others_have_changed_the_table_take_effect_once(e):
    await started(e)
    client, other = await e.client(), await e.client("other")
    first = (await client.call(*numbered(create("t", 1), 1), 20_000)).table
    made = [first.id, (await client.call(*numbered(split("t", HALF), 2), 20_000)).table.id]
    dropped = (await client.call(*numbered(drop("t"), 3), 20_000)).id
    assert [*made, dropped] == [1, 1, 1]
    assert (await client.call(*numbered(create("t", 1), 1), 20_000)).table.id == 1
    assert await tables(client) == {}, "it is not created again"
    await other.call(*create("t", 1), 20_000)
    again = (await client.call(*numbered(split("t", HALF), 2), 20_000)).table
    assert (again.id, len(again.tablets)) == (1, 0), "its table is gone"
    assert (await client.call(*numbered(drop("t"), 3), 20_000)).id == 1
    assert await tables(client) == {2: ("t", 1)}, "the table of the other client is as it made it"


@ensemble
async def test_next_leader_knows_which_requests_took_effect(e):
    await started(e)
    client = await e.client()
    await client.call(*numbered(create("t", 1), 1), 20_000)
    await client.call(*numbered(drop("t"), 2), 20_000)
    before = await dump(client)
    leader = next(n for n, c in e.coordinators.items() if c is e.leader())
    await e.kill(leader)
    await e.until(e.settled)
    assert await dump(client) == before
    assert (await client.call(*numbered(create("t", 1), 1), 20_000)).table.id == 1
    assert await tables(client) == {}


@ensemble
async def test_request_that_is_committed_counts_before_its_operation_ends(e):
    """A drop whose caller got no answer is sent again while its calls to servers are under way."""
    await started(e, coordinators=1)
    client, other = await e.client(), await e.client("other")
    await client.call(*create("t", 3), 20_000)
    e.cut.add("s1")
    wanted = numbered(drop("t"), 1)
    found = await asyncio.gather(client.call(*wanted, 20_000), other.call(*wanted, 20_000))
    assert [f.id for f in found] == [1, 1]
    e.cut.clear()


@ensemble
async def test_drop_of_a_table_that_never_existed_says_so_though_no_leader_was_there_at_first(e):
    client = await e.client()
    dropping = asyncio.get_running_loop().create_task(client.call(*drop("never"), 60_000))
    await e.wait_s(1)
    await started(e)
    with pytest.raises(NotFound, match="no table 'never'"):
        await dropping


@ensemble
async def test_operation_id_of_another_request_is_refused(e):
    await started(e, coordinators=1)
    client = await e.client()
    await client.call(*numbered(create("t", 1), 1), 20_000)
    for request in numbered(drop("t"), 1), numbered(create("u"), 1), numbered(split("t", 5), 1):
        with pytest.raises(InvalidArgument, match="a sequence number of its own"):
            await client.call(*request, 20_000)
    assert await tables(client) == {1: ("t", 1)}


@ensemble
async def test_oldest_requests_are_forgotten(e):
    kept, answers.KEPT = answers.KEPT, 3
    try:
        await started(e, coordinators=1)
        client = await e.client()
        for number in range(5):
            await client.call(*numbered(create(f"t{number}", 1), number + 1), 20_000)
        records = (await dump(client))["records"]
        found = [r["answered"]["operation"]["sequence"] for r in records if "answered" in r]
        assert found == ["3", "4", "5"]
        await e.kill("c0")
        await e.coordinator("c1")
        await e.until(e.settled)
        assert (await dump(client))["records"] == records
    finally:
        answers.KEPT = kept
