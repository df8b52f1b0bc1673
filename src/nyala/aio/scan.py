"""AsyncScan: a read on an event loop, described first and run when its rows are requested."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from nyala.aio.session import Session
from nyala.client.calls.scanning import Scanning
from nyala.client.checks import OtherNames
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.read.pandas_types import to_pandas
from nyala.client.read.read_spec import ReadSpec
from nyala.common.hybrid_time import as_stamp
from nyala.common.optional.needed import needed
from nyala.common.schema import Schema
from nyala.env.tasks import Lane

Describe = Callable[[Schema], ReadSpec]
"""Return a read of a table that has these columns."""


class AsyncScan(OtherNames):
    """A read that was described. Each coroutine that returns rows runs it again at the same snapshot.

    Made by `AsyncTable.scan` and `AsyncTable.changes`. `async for batch in scan` reads record batches; a loop
    that ends early ends the streams from the servers.

    Args:
        session: the client.
        table: the table.
        describe: makes the read.
        at: time whose columns the rows have; None: the present ones.

    Raises:
        NotFound, InvalidArgument: the read makes no sense; with `at` when its rows are requested.
    """

    def __init__(
        self, session: Session, table: OpenTable, describe: Describe, at: int | datetime | None
    ) -> None:
        self._session = session
        self._table = table
        self._describe = describe
        self._at = None if at is None else max(1, as_stamp(at))
        self._scanning: Scanning | None = None
        if self._at is None:
            self._scanning = Scanning(session.core(), table, describe(table.schema))

    def __repr__(self) -> str:
        return f"<nyala.aio scan of {self._table.name!r}; nothing is read before it is awaited>"

    async def _run(self) -> Scanning:
        core = self._session.core()
        if self._scanning is None:
            then = await core.past.at(self._table, self._at or 0)
            spec = replace(self._describe(then.schema), schema=then.schema, past=then.dropped)
            self._scanning = self._scanning or Scanning(core, self._table, spec)
        return self._scanning

    async def schema(self) -> pa.Schema:
        """Return the Arrow schema of the rows."""
        return (await self._run()).schema

    async def at(self) -> int:
        """Return the hybrid time of the snapshot, fixed at first use; 0 with mode "latest"."""
        return await (await self._run()).fixed()

    @property
    def age_ms(self) -> int:
        """Age of the oldest tablet's rows when the last run began to read them, with mode "stale"."""
        return 0 if self._scanning is None else self._scanning.age_ms

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self.to_batches()

    async def to_batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield record batches as they come, in key order if the scan is ordered.

        Memory is bounded, also if the caller is slow. Raises as `nyala.Scan.to_batches`.
        """
        async with aclosing((await self._run()).batches()) as batches:
            async for batch in batches:
                yield batch

    async def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table, which is put together in a thread."""
        scanning = await self._run()
        parts = await scanning.collect()
        return await self._session.core().env.tasks.run(Lane.COMPUTE, scanning.assembled, parts)

    async def to_pandas(self) -> Any:
        """Return all rows as a pandas frame, with nullable types where numpy's would change values."""
        rows = await self.to_arrow()
        return await self._session.core().env.tasks.run(Lane.COMPUTE, to_pandas, rows)

    async def to_polars(self) -> Any:
        """Return all rows as a polars frame; needs polars."""
        polars = needed("polars", "to_polars()")
        return polars.from_arrow(await self.to_arrow())

    async def count(self) -> int:
        """Return the number of rows, counted at the servers (change feeds, and limits: here)."""
        return await (await self._run()).count()
