"""Addresses of tablet servers that a client has seen: bounded, however many tables it opens."""

import asyncio
from typing import Any

import pytest

from nyala.client.cluster.tablet_cache import TabletCache
from nyala.common.addresses import KEPT as ADDRESSES
from nyala.common.ids import TableId
from nyala.common.partition import PartitionSchema, partitions
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.client.support.client_bulk import SCHEMA, opened

WHOLE = PartitionSchema()


class Masters:
    """Masters of tables of one tablet, on the server that is the table's id."""

    async def look_up(self, method: Any, request: Any, **_: Any) -> pb.TabletLocationsResponse:
        (partition,) = partitions(SCHEMA, WHOLE)
        tablet = pb.TabletLocation(
            id="t", state="RUNNING", partition=convert.partition_to_proto(partition)
        )
        tablet.replicas.add(uuid="u", address=request.table_id, leader=True)
        return pb.TabletLocationsResponse(
            tablets=[tablet], partition=convert.partition_schema_to_proto(WHOLE)
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
