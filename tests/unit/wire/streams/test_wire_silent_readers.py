"""Streams to clients that stop reading are closed and their scans released; others continue."""

import asyncio
from typing import Any

import pyarrow.flight
import pytest

from nyala.wire import methods
from nyala.wire.limits import RpcLimits
from nyala.wire.proto import flight_pb2
from tests.unit.wire.support.wire_helpers import BatchStore, served
from tests.waiting import eventually

ENDLESS = 10**9


def first_of(client):
    """Begin to read an endless stream, and stop."""
    reader = client.do_get(pyarrow.flight.Ticket(b"%d" % ENDLESS))
    reader.read_chunk()
    return reader


def test_plain_flight_client_that_stops_reading_holds_no_scan():
    async def main():
        store = BatchStore()
        async with served(store, RpcLimits(unread_ms=300)) as (_, address):
            with pyarrow.flight.connect(f"grpc://{address}") as client:
                reader = await asyncio.to_thread(first_of, client)
                await eventually(lambda: store.closed_streams == 1, "the client's stream is closed")
                ticket = pyarrow.flight.Ticket(b"5")
                whole = await asyncio.to_thread(lambda: client.do_get(ticket).read_all())
                assert whole.num_rows == 5000
                reader.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("stops", [pytest.param(True, marks=pytest.mark.full), False])
def test_client_that_stops_reading_holds_no_scan_and_slow_reader_continues(stops):
    async def main():
        store = BatchStore()
        async with served(store, RpcLimits(unread_ms=300 if stops else 60_000)) as (rpc, address):
            ticket = flight_pb2.Ticket(ticket=b"%d" % (ENDLESS if stops else 50))
            answers: Any = rpc.stream(address, methods.DO_GET, ticket)
            taken = 0
            async for _ in answers:
                taken += 1
                if stops:
                    break
            if stops:
                await eventually(lambda: store.closed_streams == 1, "the client's stream is closed")
            else:
                assert taken == 51
            await answers.aclose()

    asyncio.run(main())
