"""Runs of a scan as coroutines: its snapshot, tokens, batches and rows."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import cast

import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.client.read.ahead import Ahead
from nyala.client.read.ordered_merge import merge, sort_by_key
from nyala.client.read.plan import PlannedTokens, counting
from nyala.client.read.read_spec import ReadSpec, schema_of
from nyala.client.read.side_by_side import SideBySide, sharing
from nyala.client.read.split_tokens import check_split, split_all
from nyala.common.errors import RangesChanged, Unavailable
from nyala.wire.proto import nyala_pb2 as pb

COUNT_COLUMN = "_count"


class Scanning:
    """A read that was described, and its runs. The coroutines run on the client's loop.

    Args:
        core: the client.
        table: the table.
        spec: the read.

    Attributes:
        schema: Arrow schema of the rows.
    """

    def __init__(self, core: ClientCore, table: OpenTable, spec: ReadSpec) -> None:
        self._core = core
        self._table = table
        # As described, also if another name or column is the table's when the scan is run, or run again.
        self._columns = spec.schema or table.schema
        self._spec = replace(spec, schema=self._columns)
        self._plan = core.plan(table, self._spec)
        self._ages: dict[str, int] = {}
        self.schema: pa.Schema = schema_of(self._columns, self._spec)

    @property
    def age_ms(self) -> int:
        """Age of the oldest tablet's rows when the last run began to read them, with mode "stale"."""
        return max(self._ages.values(), default=0)

    @property
    def at(self) -> int | None:
        """Hybrid time of the snapshot; None: it is not fixed yet."""
        return self._plan.at if self._plan.is_fixed else None

    async def fixed(self) -> int:
        """Return the hybrid time of the snapshot, which is fixed at first use."""
        if not self._plan.is_fixed:
            await self._plan.verified()
        return self._plan.at

    def _on_header(self, header: pb.ScanHeader) -> None:
        self._ages[header.tablet_id] = header.age_ms

    def check(self, split_bytes: int | None) -> None:
        """Check a size of pieces before anything is sent.

        Raises:
            InvalidArgument: such pieces make no sense.
        """
        if split_bytes is not None:
            check_split(self._spec, split_bytes)

    async def tokens(self, split_bytes: int | None, *, count_only: bool) -> list[pb.ScanToken]:
        """Return the pieces of the scan; see `Scan.tokens`.

        Args:
            split_bytes: size of a piece, which `check` accepts; None: one per tablet.
            count_only: the pieces give numbers of rows.
        """
        tokens = await self._plan.verified()
        if split_bytes is not None:
            tokens = await split_all(self._core.env, self._core.reader, tokens, split_bytes)
        return [counting(t) for t in tokens] if count_only else tokens

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield record batches as they come; see `Scan.to_batches`."""
        left = self._spec.limit or None
        async with aclosing(self._batches()) as batches:
            async for batch in batches:
                piece = batch if left is None else batch.slice(0, left)
                if piece.num_rows:
                    yield piece
                if left is not None:
                    left -= piece.num_rows
                    if left <= 0:
                        return

    async def _batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield batches of one snapshot; a new plan continues with the tablets that were not read."""
        plan = self._plan
        attempts = plan.attempts()
        read: dict[str, None] = {}
        at = rows = 0
        while True:
            planned = await plan.make_tokens()
            if planned.at != at or not plan.is_fixed:
                read.clear()  # empty so far, and read at another time
                at = planned.at
            ordered = self._spec.ordered
            found = self._merged(planned) if ordered else self._unordered(planned, read)
            try:
                async with aclosing(found) as batches:
                    async for batch in batches:
                        if not plan.fix(at):
                            break  # another caller has rows of another time
                        rows += batch.num_rows
                        yield batch
                        attempts.progressed()
                if plan.fix(at):
                    return
            except RangesChanged as err:
                if ordered and rows and not at:  # with a time, the new plan raises HistoryGone
                    raise Unavailable(
                        f"a range of table {self._table.name!r} was deleted after {rows} rows of an ordered "
                        "scan were read; run the scan again"
                    ) from err
                await plan.changed(attempts)

    async def _merged(self, planned: PlannedTokens) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield batches in key order; each tablet has sent its first before any goes out."""
        core = self._core
        tokens = sharing(planned.tokens, core.options.scan_ahead_bytes)
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(aclosing(self._stream(t))) for t in tokens]
            if streams:
                merged = merge(self._columns, streams, core.env.tasks)
                async with aclosing(merged) as batches:
                    async for batch in batches:
                        yield batch

    async def _unordered(
        self, planned: PlannedTokens, read: dict[str, None]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield batches of the tablets that are not in `read`, as they come; those of changes one by one.

        Args:
            planned: the tablets.
            read: ids of tablets; each that is read to its end is added.
        """
        core = self._core
        tokens = [t for t in planned.tokens if t.tablet_id not in read]
        groups = [[t] for t in tokens] if self._spec.changes else [tokens]
        for some in groups:
            reading = SideBySide(core.env, core.reader, some, self._on_header)
            async with aclosing(reading.run()) as items:
                async for found in items:
                    if found.batch is None:
                        read[found.token.tablet_id] = None
                    else:
                        yield found.batch

    def _stream(self, token: pb.ScanToken) -> Ahead[pa.RecordBatch]:
        batches: AsyncIterator[pa.RecordBatch] = self._core.reader.run(
            token, on_header=self._on_header
        )
        return Ahead(cast("AsyncGenerator[pa.RecordBatch, None]", batches))

    async def collect(self) -> list[list[pa.RecordBatch]]:
        """Return the batches of each tablet, for `assembled`."""
        return await self._plan.collect(self._on_header)

    def assembled(self, parts: list[list[pa.RecordBatch]]) -> pa.Table:
        """Return the rows of all tablets as a table, sorted and limited. Any thread."""
        batches = [b for part in parts for b in part]
        if not batches:
            return self.schema.empty_table()
        table = pa.Table.from_batches(batches)
        if self._spec.ordered and len(parts) > 1:
            table = sort_by_key(self._columns, table)
        return table.slice(0, self._spec.limit) if self._spec.limit else table

    async def count(self) -> int:
        """Return the number of rows, counted at the servers (change feeds, and limits: here)."""
        if self._spec.changes or self._spec.limit:
            return len(self.assembled(await self.collect()))
        parts = await self._plan.collect(self._on_header, count_only=True)
        counts = [n for part in parts for b in part for n in b.column(COUNT_COLUMN).to_pylist()]
        return int(sum(counts))
