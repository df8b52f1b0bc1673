"""Plan of a stream, in the driver: the end of each batch, its scan tokens, and the hold of the history.

The end of a batch is a time at which every tablet has answered, so that no row at or below it can appear
later. It is never between the drop of a range and later rows of the same keys in a new range: a key's
changes are in order within one partition, and in order between batches.
"""

import uuid
from dataclasses import replace

import pyarrow as pa

from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.client.feed.slices import FeedSlices, Times, difference
from nyala.client.hold import Holding
from nyala.client.read.read_spec import changes_spec
from nyala.common.errors import HistoryGone, InvalidArgument, SchemaMismatch
from nyala.common.hybrid_time import to_micros
from nyala.spark.stream_errors import altered, history_gone
from nyala.spark.stream_offset import StreamOffset
from nyala.spark.stream_options import StreamOptions

IDLE_US = 60_000_000
"""Time without changes after which the offset of a stream advances all the same, in microseconds."""
FUTURE_US = 1_000_000
"""Time by which `starting` may lie ahead of the servers' clocks, in microseconds."""


class StreamPlan:
    """Connection of one query to its table. Used by one thread of the driver.

    Args:
        options: of the stream.
        arrow: schema that Spark expects.

    Attributes:
        initial: offset of a stream of this table that has not begun.

    Raises:
        Unavailable: no master answers; the message has the addresses.
        SchemaMismatch: the table was altered since `load()`.
    """

    def __init__(self, options: StreamOptions, arrow: pa.Schema) -> None:
        self._options = options
        self._connection = Connection(options.masters, ClientOptions())
        self._core = core = self._connection.core
        self._table = self._connection.run(core.open_table(options.table))
        cluster = self._connection.run(core.servers(max_age_ms=core.options.lookup_max_age_ms))
        self.initial = StreamOffset(cluster=cluster.cluster_id, table=self._table.id)
        feed = changes_spec(
            self._table.schema, 0, None, options.net, options.columns, options.where
        )
        self._slices = FeedSlices(core, self._table, feed)
        own = self._slices.schema
        if [(f.name, f.type) for f in own] != [(f.name, f.type) for f in arrow]:
            raise altered(options.table, difference(arrow.names, own.names))
        self._target = 0
        self._holding: Holding | None = None

    def end_at_present(self) -> None:
        """Let no later offset be above the present."""
        self._target = self._connection.run(self._slices.present())

    def next_offset(self, start: StreamOffset, rows: int) -> StreamOffset:
        """Return the end of the batch after an offset; the same offset if there is nothing to read.

        Args:
            start: where the batch begins.
            rows: most rows of the batch; 0: not limited.

        Raises:
            HistoryGone: the history after the offset is gone.
            SchemaMismatch: the stream's columns were altered.
            InvalidArgument: the offset is of another table, or `starting` lies in the future.
        """
        start.check_same(self.initial, self._options.table)
        try:
            return self._connection.run(self._next_offset(start, rows))
        except HistoryGone as err:
            raise history_gone(self._options.table, self._options.hold_s, err) from err
        except SchemaMismatch as err:
            raise altered(self._options.table, err.message) from err

    async def _next_offset(self, start: StreamOffset, rows: int) -> StreamOffset:
        present = await self._slices.present()
        until = min(present, self._target or present)
        if start.is_initial:
            return await self._begin(start, until, rows)
        await self._hold(start)
        if start.in_snapshot:
            return await self._in_snapshot(start, rows)
        return await self._after(start, until, rows)

    async def _begin(self, start: StreamOffset, until: int, rows: int) -> StreamOffset:
        """Return the end of the first batch: rows of the snapshot, or no rows."""
        options = self._options
        begin = until if options.snapshot or not options.since else options.since
        if to_micros(begin) - to_micros(until) > FUTURE_US:
            raise InvalidArgument(
                f"option starting={begin}: it lies after the present, {until}; give an earlier time, or now"
            )
        begun = replace(
            start, stream=uuid.uuid4().hex, begin=begin, snapshot=options.snapshot, through=begin
        )
        await self._hold(begun)
        await self._slices.times(begin, max(begin, until), 1)  # for the columns at that time
        return await self._in_snapshot(begun, rows) if options.snapshot else begun

    async def _after(self, start: StreamOffset, until: int, rows: int) -> StreamOffset:
        since = start.through
        if until <= since:
            return start
        through, times = await self._slices.times(since, until, 2 * rows or 1)
        idle_us = to_micros(until) - to_micros(since)
        if not len(times) and through == until and not self._target and idle_us < IDLE_US:
            return start
        end = _end_within(times, through, rows) if rows else until
        return replace(start, through=min([end, *await self._slices.drops(since)]))

    async def _in_snapshot(self, start: StreamOffset, rows: int) -> StreamOffset:
        """Return the offset after the next rows of the snapshot; 0: after all of them."""
        end = rows and await self._slices.snapshot_end(start.begin, start.position, rows)
        tablet, key = end or ("", b"")
        return replace(start, tablet=tablet, key=key.hex())

    def tokens(self, start: StreamOffset, end: StreamOffset) -> list[bytes]:
        """Return the scan tokens of a batch, also of one that was planned by an earlier process.

        Args:
            start: offset before the batch.
            end: offset after it.

        Raises:
            As `next_offset`.
        """
        end.check_same(self.initial, self._options.table)
        try:
            return self._connection.run(self._tokens(start, end))
        except HistoryGone as err:
            raise history_gone(self._options.table, self._options.hold_s, err) from err

    async def _tokens(self, start: StreamOffset, end: StreamOffset) -> list[bytes]:
        if start == end:
            return []
        first = replace(end, through=end.begin) if start.is_initial else start
        await self._hold(first)
        if end.snapshot and (start.is_initial or start.in_snapshot):
            return await self._slices.snapshot_tokens(
                end.begin, start.position, end.position, self._options.split_bytes
            )
        if end.through <= first.through:
            return []
        return await self._slices.change_tokens(first.through, end.through)

    async def _hold(self, offset: StreamOffset) -> None:
        """Hold the history after an offset, unless this process does so already."""
        if self._holding is None and self._options.hold_s:
            self._holding = await self._core.hold(
                self._table,
                offset.through,
                self._options.hold_s * 1000,
                lasting=f"spark-{offset.stream}",
            )

    def move_hold(self, end: StreamOffset) -> None:
        """Release the history before an offset; servers learn it within seconds."""
        if self._holding is not None:
            self._holding.move(end.through)

    def close(self) -> None:
        """Disconnect; the hold expires by itself."""
        self._connection.close()


def _end_within(times: Times, through: int, rows: int) -> int:
    """Return the last time until which there are at most some rows, or else those of one time.

    Args:
        times: of changes, sorted.
        through: time until which they are all.
        rows: most rows.
    """
    if len(times) <= rows:
        return through
    beyond = int(times[rows])
    return beyond - 1 if times[0] < beyond else beyond
