"""Addresses of tablet servers that a client has seen: bounded, however many tables it opens."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from nyala.client.cluster.tablet_cache import TabletCache
from nyala.common.addresses import KEPT as ADDRESSES
from nyala.common.ids import TableId, TabletId
from nyala.common.partitioning.partition import PartitionSchema, partitions
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.client.support.client_bulk import SCHEMA, opened

WHOLE = PartitionSchema()


class Masters:
    """Masters of tables of one tablet, on the server that is the table's id."""

    def __init__(self) -> None:
        self.ranges_version = 0

    async def look_up(self, method: Any, request: Any, **_: Any) -> pb.TabletLocationsResponse:
        (partition,) = partitions(SCHEMA, WHOLE)
        tablet = pb.TabletLocation(
            id="t", state="RUNNING", partition=convert.partition_to_proto(partition)
        )
        tablet.replicas.add(uuid="u", address=request.table_id, leader=True)
        return pb.TabletLocationsResponse(
            tablets=[tablet],
            partition=convert.partition_schema_to_proto(WHOLE),
            ranges_version=self.ranges_version,
        )

    def now_us(self) -> int:
        return 0


async def refresh(cache: TabletCache, server: str) -> None:
    table = opened(WHOLE)
    table.id = TableId(server)
    await cache.refresh(table)


async def locate(cache: TabletCache, server: str) -> None:
    """Locate a journal, which is not a table."""
    answer = await cache.ask(pb.TabletLocationsRequest(table_id=server), 1_000)
    cache.location(answer.tablets[0])


@pytest.mark.parametrize("look_up", [refresh, locate])
def test_servers_seen_last_are_kept_first(look_up):
    masters: Any = Masters()
    cache = TabletCache(masters)

    async def work() -> None:
        for number in range(ADDRESSES + 500):
            await look_up(cache, f"s:{number}")
        await look_up(cache, f"s:{600}")

    asyncio.run(work())
    found = cache.servers()
    assert len(found) == ADDRESSES
    assert found[:2] == ["s:600", f"s:{ADDRESSES + 499}"]
    assert found[-1] == "s:500"


def test_older_ranges_of_another_master_do_not_replace_newer_ones():
    masters: Any = Masters()
    cache, table = TabletCache(masters), opened(WHOLE)

    async def refresh(version: int, server: str) -> tuple[int, str]:
        masters.ranges_version, table.id = version, TableId(server)
        await cache.refresh(table)
        return table.ranges_version, table.tablets[0].replicas[0][1]

    assert asyncio.run(refresh(3, "s:1")) == (3, "s:1")
    assert asyncio.run(refresh(2, "s:2")) == (3, "s:1"), "a follower's answer of a moment before"
    assert asyncio.run(refresh(3, "s:3")) == (3, "s:3")


def test_dropped_ranges_come_first_in_the_order_of_their_ends():
    table = opened(WHOLE)
    (present,) = table.tablets
    first, second, ending = (
        replace(present, id=TabletId(name), dropped_at=at)
        for name, at in (("first", 5), ("second", 7), ("ending", 0))
    )
    table.dropped = [ending, second, first]
    assert table.with_rows(4) == [first, second, ending, present], "changes of a key are in order"
    assert table.with_rows(5) == [second, ending, present], "its rows ended at that time"
    assert table.with_rows() == [ending, present], "the time of its end is not known yet"
