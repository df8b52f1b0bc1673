"""Point reads: one try at the known leader of the tablet, then a scan that finds the leader.

The first try is one message on a long-lived stream (`get_streams.py`). After a retryable error the read is a
scan token like any other read, which finds its leader by itself until the deadline.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from nyala.client.caller import Caller, OnLoop
from nyala.client.cluster.tablet_cache import (
    LOOKUP_TIMEOUT_MS,
    OpenTable,
    TabletCache,
    TabletLocation,
    range_dropped,
    update_location,
)
from nyala.client.deadline import Attempts
from nyala.client.read.get_streams import MAX_KEYS, GetStreams
from nyala.client.read.read_spec import ReadSpec
from nyala.client.read.token_reader import Reader
from nyala.common.errors import (
    NotLeader,
    NyalaError,
    OutcomeUnknown,
    Retryable,
    SchemaMismatch,
    Throttled,
    TimedOut,
    TooLarge,
    Unavailable,
)
from nyala.common.values.plain_rows import RowReader
from nyala.common.values.python_values import list_of
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.wire import flight
from nyala.wire.proto import reads_pb2

MAX_SHAPES = 64
Rows = list[dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class RowShape:
    """Columns of a look-up.

    Attributes:
        version: version of the schema that has them.
        ids: of the columns.
        reader: reads the rows of an answer.
    """

    version: int
    ids: list[int]
    reader: RowReader


class PointRead:
    """A pending read of a few keys of one tablet. It completes once, on the loop.

    Args:
        table: of the keys.
        tablet: tablet of the keys.
        keys: encoded.
        shape: the columns, as of the beginning: the table's may change before there is an answer.
        on_done: called when the read is complete.
    """

    __slots__ = ("_on_done", "error", "keys", "raw", "shape", "table", "tablet")

    def __init__(
        self,
        table: OpenTable,
        tablet: TabletLocation,
        keys: Sequence[bytes],
        shape: RowShape,
        on_done: Callable[[], None],
    ) -> None:
        self.table = table
        self.tablet = tablet
        self.keys = keys
        self.shape = shape
        self.raw: bytes = b""
        self.error: NyalaError | None = None
        self._on_done = on_done

    def done(self, raw: bytes, error: NyalaError | None) -> None:
        """Complete the read with the bytes for a `RowReader`, or with an error."""
        self.raw, self.error = raw, error
        self._on_done()

    def rows(self) -> Rows:
        """Return the rows of a read that is complete without an error. Any thread."""
        return self.shape.reader.read(self.raw, len(self.keys))


class PointGetter:
    """The look-ups of one client. Runs on the client's loop.

    Args:
        env: clock, tasks, rpc.
        locations: locations of tablets; updated when another replica leads.
        clock: merges the times of the servers' reads.
        reader: runs scan tokens.
    """

    def __init__(
        self, env: Env, locations: TabletCache, clock: HybridClock, reader: Reader
    ) -> None:
        self._env = env
        self._locations = locations
        self._clock = clock
        self._reader = reader
        self._on_loop = OnLoop(env.tasks)
        self.lookups = GetStreams(env, locations.refresh_shared)
        self._shapes: dict[tuple[str, int, tuple[str, ...] | None], RowShape] = {}

    async def get(
        self, table: OpenTable, tablet: TabletLocation, keys: Sequence[bytes],
        batch: Callable[[], pa.RecordBatch], columns: tuple[str, ...] | None, timeout_ms: int,
        caller: Caller | None = None,
    ) -> Rows:  # fmt: skip
        """Look up keys of one tablet, linearizably: few on the stream to its leader, more by scan token.

        Args:
            table: where.
            tablet: tablet of the keys.
            keys: encoded.
            batch: makes the same keys as a batch, for a scan token.
            columns: those wanted; None: all.
            timeout_ms: for all of it.
            caller: makes the call; None: a coroutine on the loop.

        Returns:
            The row of each key, or None.
        """
        caller = caller or self._on_loop
        attempts = Attempts(self._env, timeout_ms)
        known: NyalaError | None = None
        if len(keys) <= MAX_KEYS:
            done = caller.signal()
            wanted = self.point_read(table, tablet, keys, columns, done.set)
            caller.hand_over(partial(self.try_leader, timeout_ms=timeout_ms), wanted)
            await done.wait()
            if wanted.error is None:
                return wanted.rows()
            if not is_retryable(wanted.error):
                raise wanted.error
            known = wanted.error
        return await caller.run(
            self.retry_via_scan(table, tablet, batch(), columns, attempts, known)
        )

    def point_read(
        self, table: OpenTable, tablet: TabletLocation, keys: Sequence[bytes],
        columns: tuple[str, ...] | None, on_done: Callable[[], None],
    ) -> PointRead:  # fmt: skip
        """Return a read for `try_leader`. Any thread.

        Args:
            table: where.
            tablet: tablet of the keys.
            keys: encoded.
            columns: those wanted; None: all.
            on_done: called when the read is complete.

        Raises:
            NotFound: a column was dropped, or renamed, in the meantime.
        """
        return PointRead(table, tablet, keys, self._shape(table, columns), on_done)

    def try_leader(self, wanted: PointRead, timeout_ms: int) -> None:
        """Read once at the known leader; after an error that `is_retryable`, call `retry_via_scan`."""
        tablet = wanted.tablet
        leader = tablet.leader
        if leader is None:
            wanted.done(b"", Unavailable(f"no leader of tablet {tablet.id} is known"))
            return

        def on_answer(answer: reads_pb2.GetAnswer | NyalaError) -> None:
            if isinstance(answer, NyalaError):
                address = answer.address if isinstance(answer, NotLeader) else None
                if is_retryable(answer):
                    self._locations.learn(tablet, asked=leader, leader=None, address=address)
                wanted.done(b"", answer)
                return
            self._clock.merge(answer.at)
            wanted.done(answer.rows, None)

        part = reads_pb2.GetPart(
            tablet_id=tablet.id,
            schema_version=wanted.shape.version,
            column_ids=wanted.shape.ids,
            keys=wanted.keys,
        )
        self.lookups.send(leader, wanted.table, tablet, part, on_answer, timeout_ms)

    async def retry_via_scan(
        self, table: OpenTable, tablet: TabletLocation, keys: pa.RecordBatch, columns: tuple[str, ...] | None,
        attempts: Attempts, known: NyalaError | None,
    ) -> Rows:  # fmt: skip
        """Read by a scan token, which finds the leader.

        Args:
            table: the open table.
            tablet: the tablet that is read.
            keys: batch of the key columns.
            columns: names wanted; None: all.
            attempts: the deadline.
            known: error of the try at the leader; None: there was none.

        Raises:
            RangesChanged: the tablet's range was dropped.
        """
        reason = (
            known if isinstance(known, TimedOut | Unavailable | NotLeader | Throttled) else None
        )
        with attempts.keeping(reason):
            return await self._scan(table, tablet, keys, columns, attempts)

    async def _scan(
        self, table: OpenTable, tablet: TabletLocation, keys: pa.RecordBatch, columns: tuple[str, ...] | None,
        attempts: Attempts,
    ) -> Rows:  # fmt: skip
        if tablet.leader is None:
            try:
                left_ms = max(1, min(attempts.left_ms(), LOOKUP_TIMEOUT_MS))
                await self._locations.refresh_shared(table, left_ms)
            except Retryable:
                pass  # the scan looks the tablet up, too
            else:
                if not update_location(tablet, table):
                    raise range_dropped(tablet, table)
        spec = ReadSpec(columns=columns, latest=True)
        token = self._reader.token(table, tablet, spec, 0, max(1, attempts.left_ms()))
        token.keys_ipc = flight.batch_message(keys)
        found: Rows = [None] * keys.num_rows
        for batch in await self._reader.collect(token):
            names = [n for n in batch.schema.names if n != "_row"]
            lists = [list_of(batch.column(n)) for n in names]
            for place, *values in zip(batch.column("_row").to_pylist(), *lists, strict=True):
                found[place] = dict(zip(names, values, strict=True))
        return found

    def _shape(self, table: OpenTable, columns: tuple[str, ...] | None) -> RowShape:
        """Return the columns of a look-up as of now."""
        schema = table.schema  # read once: another thread may alter the table
        key = table.id, schema.version, columns
        found = self._shapes.get(key)
        if found is None:
            chosen = schema.columns if columns is None else [schema.column(n) for n in columns]
            reader = RowReader([c.name for c in chosen], [c.type for c in chosen])
            found = RowShape(schema.version, [int(c.id) for c in chosen], reader)
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            self._shapes[key] = found
        return found

    def close(self) -> None:
        """End the streams of look-ups."""
        self.lookups.close()


def is_retryable(error: NyalaError) -> bool:
    """Return whether a read by scan token may succeed after this error."""
    return isinstance(error, Retryable | OutcomeUnknown | SchemaMismatch | TooLarge)
