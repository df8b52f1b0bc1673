"""Delivery of one batch to its tablet's leader, with the same bytes at each try, until it is answered."""

import pyarrow as pa

from nyala.client.cluster.leader_operation import LeaderOperation, Texts
from nyala.client.cluster.tablet_cache import (
    OpenTable,
    TabletCache,
    TabletLocation,
    range_dropped,
    update_location,
)
from nyala.client.deadline import Attempts
from nyala.client.write.put_streams import PutStreams
from nyala.common.errors import OutcomeUnknown, Retryable
from nyala.env.clock import HybridClock
from nyala.wire import flight, status
from nyala.wire.proto import nyala_pb2 as pb


class Delivery:
    """Delivery of batches. Runs on the client's loop.

    Args:
        locations: locations of tablets.
        clock: its highest time is sent with each batch.
        streams: open streams to servers.
    """

    def __init__(self, locations: TabletCache, clock: HybridClock, streams: PutStreams) -> None:
        self._locations = locations
        self._clock = clock
        self._streams = streams

    @property
    def seen(self) -> int:
        """Highest hybrid time that this client has seen."""
        return self._clock.seen

    async def send(
        self, table: OpenTable, tablet: TabletLocation, header: pb.WriteHeader, piece: pa.RecordBatch,
        attempts: Attempts, *, exclusive: bool = True,
    ) -> pb.WriteResult:  # fmt: skip
        """Send one batch to the leader of its tablet until it is answered.

        Args:
            table: table of the rows.
            tablet: tablet of the rows.
            header: operation and sequence number.
            piece: the rows.
            attempts: the deadline and the pauses between tries.
            exclusive: no other process sends the same operation.

        Raises:
            RangesChanged: the range of `tablet` was dropped, and nothing was written.
            TabletReplaced: `tablet` is another one by now; send the rows as a new operation.
        """
        parts = flight.batch_parts(piece)

        async def attempt(address: str, timeout_ms: int) -> pb.WriteResult:
            header.propagated_time = self._clock.seen
            stream = self._streams.get(address, piece.schema)
            try:
                result = await stream.put(header, parts, timeout_ms)
            except (OutcomeUnknown, Retryable):
                if stream.silent:
                    self._streams.abandon(address)
                raise
            if result.error.code:
                raise status.from_proto(result.error)
            return result

        async def look_up(timeout_ms: int) -> None:
            await self._locations.refresh_shared(table, timeout_ms)
            if not update_location(tablet, table):
                raise range_dropped(tablet, table)

        async def look_again() -> None:
            await self._locations.refresh_shared(table)
            update_location(tablet, table)

        texts = Texts(
            late=f"no leader of tablet {tablet.id} answered a write in time",
            unknown="The rows sent may or may not have taken effect; read them back, or upsert them again",
            no_effect="The rows of that batch had no effect; check: nyala cluster ksck",
            content="rows",
        )
        operation = LeaderOperation(
            self._locations, tablet, header, attempt, look_up, look_again, texts, exclusive
        )
        return await operation.send(attempts)
