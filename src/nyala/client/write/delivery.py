"""Delivery of one batch to its tablet's leader: equal bytes at each try, until an answer or the deadline."""

import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable, TabletCache, TabletLocation, follow, gone
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

TRY_TIMEOUT_MS = 4_000
"""One try of one batch; the caller's deadline covers all of them."""


class TabletReplaced(Exception):
    """Another tablet has the key range now, and its place is known: what was sent to the old one is gone."""


class Delivery:
    """Sends batches. Runs on the client's loop.

    Args:
        locations: where tablets are.
        clock: the highest time seen goes along.
        streams: open streams to servers.
    """

    def __init__(self, locations: TabletCache, clock: HybridClock, streams: PutStreams) -> None:
        self._locations = locations
        self._clock = clock
        self._streams = streams

    @property
    def seen(self) -> int:
        """The highest time seen."""
        return self._clock.seen

    async def send(
        self, table: OpenTable, tablet: TabletLocation, header: pb.WriteHeader, piece: pa.RecordBatch,
        attempts: Attempts, *, alone: bool = True,
    ) -> pb.WriteResult:  # fmt: skip
        """Send one batch to the leader of its tablet, the same bytes at each try, until it answers.

        Args:
            table: of the rows.
            tablet: of them.
            header: says what is done with them, and under which number.
            piece: the rows.
            attempts: until when to try.
            alone: no other process sends the same.

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
                    raise  # decided in the tablet's log: no try had, or will have, any effect
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
                    if unknown or not alone or not _begin_later(header, err):
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
                raise _gave_up(tablet, unknown, last)
            if not await self._look_again(table, tablet):
                dropped = gone(tablet, table)
                if not unknown:
                    raise dropped
                raise OutcomeUnknown(f"{dropped.message}. An earlier try was not answered")
            if tablet.id != header.tablet_id:
                raise TabletReplaced

    async def _look_again(self, table: OpenTable, tablet: TabletLocation) -> bool:
        """Ask the masters where the tablet is now; a failure only means another round.

        Returns:
            Whether its part of the table is still there.
        """
        if tablet.leader:
            return True
        try:
            await self._locations.refresh(table)
        except Retryable:
            return True
        return follow(tablet, table)


def _begin_later(header: pb.WriteHeader, err: SessionExpired) -> bool:
    """Say that an operation begins now; return whether it may be sent again for that.

    A tablet that has forgotten clients refuses what may be a retry of theirs. One that was never sent before
    is none.
    """
    until = int(err.details.get("forgotten_until", 0))
    if until < header.since:
        return False
    header.since = until + 1
    return True


def _gave_up(tablet: TabletLocation, unknown: bool, last: str) -> NyalaError:
    said = f"no leader of tablet {tablet.id} answered a write in time; at last: {last}. "
    if unknown:
        return OutcomeUnknown(
            said
            + "The rows sent may or may not have taken effect; read them back, or upsert them again"
        )
    return TimedOut(said + "The rows of that batch had no effect; check: nyala cluster ksck")
