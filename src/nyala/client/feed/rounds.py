"""Rounds of a followed change feed: each reads all changes of a table between two times.

A round reads every tablet at one time and merges the tablets, so its end is a position of the whole table.
If a tablet has more changes than a server reads at once, the round is repeated with an earlier end. A round
that fails is repeated from the position that it has reached. A round reads with the columns that the table
had in its interval: it ends before the time from which the table has others, with which the next one begins.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pyarrow as pa

from nyala.client.cluster.past_schemas import PastSchema
from nyala.client.cluster.tablet_cache import LOOKUP_TIMEOUT_MS, OpenTable
from nyala.client.core import ClientCore
from nyala.client.deadline import Attempts
from nyala.client.feed.change_batch import ChangeBatch
from nyala.client.feed.time_merge import TimedStream, empty_batch, fill_all, in_time_order
from nyala.client.read.read_spec import ReadSpec, schema_of
from nyala.common.errors import Retryable, SchemaMismatch, TimedOut, Unavailable
from nyala.common.expressions.predicate import columns_of
from nyala.wire.proto import nyala_pb2 as pb

ROUND_VERSIONS = 250_000
"""Number of versions of rows of one tablet that a server reads in one round."""
MERGE_BYTES = 32 << 20
"""Bytes of batches that a merge of many tablets holds, about."""
MIN_BATCH_BYTES = 64 << 10
"""Smallest size of a batch of one tablet in such a merge, in bytes."""


class _SchemaIsNewer(Exception):
    """A tablet has a newer schema than the one that the round was planned with."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class _OnlyPart(Exception):
    """A tablet has more changes than a server reads at once."""

    def __init__(self, through: int) -> None:
        super().__init__(through)
        self.through = through


class Rounds:
    """The rounds of one feed. Runs on the client's loop.

    Args:
        core: the client.
        table: its own handle of the table; its schema is that of the position.
        spec: the feed, of every version.
        timeout_ms: deadline of a round, from its last progress.
    """

    def __init__(self, core: ClientCore, table: OpenTable, spec: ReadSpec, timeout_ms: int) -> None:
        self.table = table
        self._core = core
        self._spec = spec
        self._timeout_ms = timeout_ms
        self._then: PastSchema | None = None  # not looked up yet
        self._entered = 0  # position from which it is valid

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the changes as of the newest round."""
        return schema_of(self.table.schema, self._spec)

    async def present(self) -> int:
        """Return a time at or above every write acknowledged before this call."""
        return await self._core.reader.time_for(self.table, ReadSpec(), self._timeout_ms)

    async def read(self, since: int, until: int) -> AsyncGenerator[ChangeBatch, None]:
        """Yield the changes of (since, until], or of an earlier part of it; a last batch may be empty.

        Args:
            since: exclusive lower hybrid time.
            until: inclusive upper hybrid time.

        Raises:
            HistoryGone: the history after `since` is gone.
            SchemaMismatch: a column of the feed was dropped.
            TimedOut: no leader of some tablet answered in time.
        """
        attempts = Attempts(self._core.env, self._timeout_ms)
        newer = 0
        if since < self._entered:  # a batch that was fetched ahead has been discarded
            self._then = None
        while True:
            try:
                if self._then is None or newer:
                    changed = await self._enter(since, newer, attempts)
                    newer = 0
                    if changed:
                        yield ChangeBatch(empty_batch(self.schema), since, True)
                assert self._then is not None, "the columns of the position are known"
                other = self._then.until
                end = min(until, other - 1) if other else until
                if since < end:
                    async with aclosing(self._once(since, end, self._then)) as found:
                        async for rows, through in found:
                            attempts.progressed()
                            since = through
                            yield ChangeBatch(rows, since)
                if end == until:
                    return
                self._then = None
            except _OnlyPart as part:
                until = part.through
            except _SchemaIsNewer as err:
                newer = err.version
            except SchemaMismatch:
                if self._then is None or newer:
                    raise  # of the feed's columns
                newer = self._then.version + 1
            except Retryable as err:
                if isinstance(err, TimedOut) or not await attempts.pause():
                    raise
                await self._refresh()

    async def _refresh(self) -> None:
        """Look up the tablets; a failure is ignored, as the caller retries."""
        try:
            await self._core.locations.refresh_shared(self.table, LOOKUP_TIMEOUT_MS)
        except Retryable:
            return

    async def _once(
        self, since: int, until: int, then: PastSchema
    ) -> AsyncGenerator[tuple[pa.RecordBatch, int], None]:
        """Yield the changes of (since, until] as `in_time_order`.

        Args:
            since: exclusive lower hybrid time.
            until: inclusive upper hybrid time.
            then: columns of the table in that interval.

        Raises:
            _SchemaIsNewer, _OnlyPart: nothing was yielded.
        """
        ends = list[int]()

        def on_header(header: pb.ScanHeader) -> None:
            if header.schema_version > then.version:
                raise _SchemaIsNewer(header.schema_version)
            ends.append(header.through)

        spec = replace(
            self._spec, since=since, at=until, limit=ROUND_VERSIONS, schema=then.schema,
            past=then.dropped,
        )  # fmt: skip
        planned = await self._core.plan(self.table, spec).make_tokens()
        size = max(MIN_BATCH_BYTES, MERGE_BYTES // max(1, len(planned.tokens)))
        schema = self.schema
        streams = []
        for token in planned.tokens:
            token.batch_bytes = min(size, token.batch_bytes or size)
            streams.append(TimedStream(self._core.reader.run(token, on_header=on_header), schema))
        try:
            await fill_all(streams)
            if min(ends, default=until) < until:
                raise _OnlyPart(min(ends))
            async with aclosing(in_time_order(streams, schema, since, until)) as merged:
                async for found in merged:
                    yield found
        finally:
            for stream in streams:
                await stream.close()

    async def _enter(self, since: int, version: int, attempts: Attempts) -> bool:
        """Take over the columns after a position; return whether columns of the feed changed.

        Args:
            since: hybrid time of the position.
            version: of the table's schema now, at least; 0: it is not known to be newer.
            attempts: deadline and pauses.

        Raises:
            SchemaMismatch: a column of the feed, or of its condition, was dropped.
            Unavailable: the masters do not know that version yet.
        """
        table, spec, old = self.table, self._spec, self.table.schema
        if version:
            table.follow(await self._core.locations.open_again(table, version, attempts))
            table.schema = old
        then = await self._core.past.at(table, since + 1)
        if then.version < version:
            raise Unavailable(
                f"a master answers with version {then.version} of table {table.name!r}, which has version "
                f"{version}; check: nyala cluster ksck"
            )
        new = then.schema
        named = () if spec.columns is None else spec.columns
        used = [old.column(n).id for n in named]
        used += columns_of(spec.where) if spec.where is not None else ()
        dropped = [old.by_id[i].name for i in used if i not in new.by_id]
        if dropped:
            raise SchemaMismatch(
                f"column {dropped[0]!r}, which this feed reads, was dropped from table {table.name!r}; "
                "follow it again without that column, with since=feed.position"
            )
        before = schema_of(old, spec)
        table.schema, self._then, self._entered = new, then, since
        if spec.columns is not None:
            names = tuple(new.by_id[old.column(n).id].name for n in named)
            self._spec = spec = replace(spec, columns=names)
            return not schema_of(new, spec).equals(before)
        return bool(new.columns != old.columns)
