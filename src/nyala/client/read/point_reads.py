"""Point reads: one try at the known leader of the tablet, then a scan that finds the leader.

The first try is one message on a long-lived stream (`get_streams.py`). After a retryable error the read is a
scan token like any other read, which finds its leader by itself until the deadline.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from nyala.client.cluster.tablet_cache import (
    LOOKUP_TIMEOUT_MS,
    OpenTable,
    TabletCache,
    TabletLocation,
    range_dropped,
    update_location,
)
from nyala.client.read.get_streams import MAX_KEYS, GetStreams
from nyala.client.read.read_spec import ReadSpec
from nyala.client.read.token_reader import Reader
from nyala.common.errors import (
    NotLeader,
    NyalaError,
    OutcomeUnknown,
    Retryable,
    SchemaMismatch,
    TooLarge,
    Unavailable,
)
from nyala.common.plain_rows import RowReader
from nyala.common.python_values import list_of
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.wire import flight
from nyala.wire.proto import reads_pb2

MAX_SHAPES = 64
Rows = list[dict[str, Any] | None]
_Shape = tuple[list[int], RowReader]


class PointRead:
    """A pending read of a few keys of one tablet. It completes once, on the loop.

    Args:
        table: where.
        tablet: tablet of the keys.
        keys: encoded.
        columns: those wanted; None: all.
        on_done: called when the read is complete.
    """

    __slots__ = ("_on_done", "columns", "error", "keys", "raw", "table", "tablet")

    def __init__(
        self,
        table: OpenTable,
        tablet: TabletLocation,
        keys: Sequence[bytes],
        columns: tuple[str, ...] | None,
        on_done: Callable[[], None],
    ) -> None:
        self.table = table
        self.tablet = tablet
        self.keys = keys
        self.columns = columns
        self.raw: bytes = b""
        self.error: NyalaError | None = None
        self._on_done = on_done

    def done(self, raw: bytes, error: NyalaError | None) -> None:
        """Complete the read with the bytes for a `RowReader`, or with an error."""
        self.raw, self.error = raw, error
        self._on_done()


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
        self.lookups = GetStreams(env)
        self._shapes: dict[tuple[str, int, tuple[str, ...] | None], _Shape] = {}

    async def get(
        self, table: OpenTable, tablet: TabletLocation, keys: Sequence[bytes],
        batch: Callable[[], pa.RecordBatch], columns: tuple[str, ...] | None, timeout_ms: int,
    ) -> Rows:  # fmt: skip
        """Look up keys of one tablet, linearizably: few on the stream to its leader, more by scan token.

        Args:
            table: where.
            tablet: tablet of the keys.
            keys: encoded.
            batch: makes the same keys as a batch, for a scan token.
            columns: those wanted; None: all.
            timeout_ms: for all of it.

        Returns:
            The row of each key, or None.
        """
        began_us = self._env.clock.monotonic_us()
        if len(keys) <= MAX_KEYS:
            done = asyncio.Event()
            wanted = PointRead(table, tablet, keys, columns, done.set)
            self.try_leader(wanted, timeout_ms)
            await done.wait()
            if wanted.error is None:
                return self.rows(wanted)
            if not is_retryable(wanted.error):
                raise wanted.error
        left_ms = max(1, timeout_ms - (self._env.clock.monotonic_us() - began_us) // 1000)
        return await self.retry_via_scan(table, tablet, batch(), columns, left_ms)

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

        ids, _ = self._shape(wanted.table, wanted.columns)
        part = reads_pb2.GetPart(
            tablet_id=tablet.id,
            schema_version=wanted.table.schema.version,
            column_ids=ids,
            keys=wanted.keys,
        )
        self.lookups.send(leader, part, on_answer, timeout_ms)

    def rows(self, wanted: PointRead) -> Rows:
        """Return the rows of a complete read. Any thread."""
        _, reader = self._shape(wanted.table, wanted.columns)
        return reader.read(wanted.raw, len(wanted.keys))

    async def retry_via_scan(
        self, table: OpenTable, tablet: TabletLocation, keys: pa.RecordBatch, columns: tuple[str, ...] | None,
        timeout_ms: int,
    ) -> Rows:  # fmt: skip
        """Read by a scan token, which finds the leader.

        Args:
            table: the open table.
            tablet: the tablet that is read.
            keys: batch of the key columns.
            columns: names wanted; None: all.
            timeout_ms: deadline, from now.

        Raises:
            RangesChanged: the tablet's range was dropped.
        """
        if tablet.leader is None:
            try:
                await self._locations.refresh(table, min(timeout_ms, LOOKUP_TIMEOUT_MS))
            except Retryable:
                pass  # the scan looks the tablet up, too
            else:
                if not update_location(tablet, table):
                    raise range_dropped(tablet, table)
        spec = ReadSpec(columns=columns, latest=True)
        token = self._reader.token(table, tablet, spec, 0, timeout_ms)
        token.keys_ipc = flight.batch_message(keys)
        found: Rows = [None] * keys.num_rows
        for batch in await self._reader.collect(token):
            names = [n for n in batch.schema.names if n != "_row"]
            lists = [list_of(batch.column(n)) for n in names]
            for place, *values in zip(batch.column("_row").to_pylist(), *lists, strict=True):
                found[place] = dict(zip(names, values, strict=True))
        return found

    def _shape(self, table: OpenTable, columns: tuple[str, ...] | None) -> _Shape:
        """Return the column ids of a look-up, and what reads its answer."""
        key = table.id, table.schema.version, columns
        found = self._shapes.get(key)
        if found is None:
            schema = table.schema
            chosen = schema.columns if columns is None else [schema.column(n) for n in columns]
            reader = RowReader([c.name for c in chosen], [c.type for c in chosen])
            found = [int(c.id) for c in chosen], reader
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
