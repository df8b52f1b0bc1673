"""Delivery of one batch to its tablet's leader, with the same bytes at each try, until it is answered."""

import pyarrow as pa

from nyala.client.cluster.tablet_cache import (
    OpenTable,
    TabletCache,
    TabletLocation,
    range_dropped,
    update_location,
)
from nyala.client.deadline import Attempts
from nyala.client.write.put_streams import PutStreams
from nyala.common.errors import (
    NotLeader,
    NyalaError,
    OutcomeUnknown,
    RangesChanged,
    Rejected,
    Retryable,
    SessionExpired,
    Throttled,
    TimedOut,
    may_have_arrived,
)
from nyala.env.clock import HybridClock
from nyala.wire import flight, status
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto.journal_pb2 import JournalStepRequest, JournalStepsRequest

TRY_TIMEOUT_MS = 4_000
"""Timeout of one try, in milliseconds; the caller's deadline covers all tries."""


class TabletReplaced(Exception):
    """The tablet was replaced by another one, whose location is known; rows sent to the old one are lost."""


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
        unknown, last = False, "no replica of the tablet is known"
        while True:
            wait_ms = 0
            for address in tablet.addresses():
                left_ms = attempts.left_ms()
                if left_ms <= 0:
                    break
                header.propagated_time = self._clock.seen
                stream = self._streams.get(address, piece.schema)
                try:
                    result = await stream.put(header, parts, min(left_ms, TRY_TIMEOUT_MS))
                    if not result.error.code:
                        tablet.leader = address
                        return result
                    raise status.from_proto(result.error)
                except RangesChanged:
                    raise  # decided in the tablet's log: no try has any effect
                except NotLeader as err:
                    last = f"{address} does not lead"
                    self._locations.learn(
                        tablet, asked=address, leader=err.leader, address=err.address
                    )
                    if tablet.leader:
                        break
                except Throttled as err:
                    last, wait_ms = err.message, int(err.details.get("retry_after_ms", 50))
                    break
                except (OutcomeUnknown, Retryable) as err:
                    unknown |= may_have_arrived(err)
                    last = f"{address}: {err.message}"
                    if stream.silent:
                        self._streams.abandon(address)
                    self._locations.learn(tablet, asked=address, leader=None, address=None)
                except SessionExpired as err:
                    if unknown or not exclusive or not restart_later(header, err):
                        raise
                    last = err.message
                    break
                except Rejected as err:
                    if not unknown:
                        raise
                    raise OutcomeUnknown(
                        f"{err.message}; an earlier try of the same rows may yet take effect"
                    ) from err
            if not await attempts.pause(wait_ms):
                raise _timed_out(tablet, unknown, last)
            if not await self._relocate(table, tablet):
                dropped = range_dropped(tablet, table)
                if not unknown:
                    raise dropped
                raise OutcomeUnknown(f"{dropped.message}. An earlier try was not answered")
            if tablet.id != header.tablet_id:
                raise TabletReplaced

    async def _relocate(self, table: OpenTable, tablet: TabletLocation) -> bool:
        """Look up the tablet again if its leader is not known; a failure is ignored, as the caller retries.

        Returns:
            True if the tablet's partition exists.
        """
        if tablet.leader:
            return True
        try:
            await self._locations.refresh(table)
        except Retryable:
            return True
        return update_location(tablet, table)


def restart_later(
    header: pb.WriteHeader | JournalStepRequest | JournalStepsRequest, err: SessionExpired
) -> bool:
    """Advance an operation's `since`; return whether it may be sent again.

    A tablet that has dropped client sessions refuses operations that may be retries. An operation that was
    never sent before is no retry.
    """
    until = int(err.details.get("forgotten_until", 0))
    if until < header.since:
        return False
    header.since = until + 1
    return True


def _timed_out(tablet: TabletLocation, unknown: bool, last: str) -> NyalaError:
    text = f"no leader of tablet {tablet.id} answered a write in time; at last: {last}. "
    if unknown:
        return OutcomeUnknown(
            text
            + "The rows sent may or may not have taken effect; read them back, or upsert them again"
        )
    return TimedOut(text + "The rows of that batch had no effect; check: nyala cluster ksck")
