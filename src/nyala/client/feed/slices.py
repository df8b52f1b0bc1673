"""Slices of a table for readers that plan in one process and read in others, as Spark's streams do.

A slice is the changes of an interval of hybrid time, or the rows of one snapshot between two keys: the same
rows whenever it is read. Its scan tokens are read by any process.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.client.deadline import Attempts
from nyala.client.read.ordered_merge import last_key
from nyala.client.read.read_spec import ReadSpec, key_names, schema_of
from nyala.client.read.split_tokens import split_all
from nyala.common.errors import SchemaMismatch
from nyala.common.schema import Schema
from nyala.wire.proto import nyala_pb2 as pb

Times = np.ndarray[tuple[int], np.dtype[np.int64]]
Position = tuple[str, bytes]
"""Tablet and encoded primary key of a row; a snapshot is read in this order."""


class FeedSlices:
    """The slices of one feed. Runs on the client's loop.

    Args:
        core: the client.
        table: its own handle of the table, whose schema it replaces.
        feed: the feed; its times are those of the slices.
    """

    def __init__(self, core: ClientCore, table: OpenTable, feed: ReadSpec) -> None:
        self._core = core
        self._table = table
        self._feed = feed
        self._columns = self._columns_of(table.schema)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the feed's batches."""
        return schema_of(self._table.schema, self._feed)

    async def drops(self, since: int) -> list[int]:
        """Return the hybrid times after `since` at which ranges of the table were dropped.

        Call it after `times`: when a tablet of a new range has answered, the leader master knows the times of
        all drops before it, also of those that were under way when the ranges were looked up here.
        """
        if not all(t.dropped_at for t in self._table.dropped):
            await self._core.locations.refresh(self._table, by_leader=True)
        return [t.dropped_at for t in self._table.dropped if since < t.dropped_at]

    async def present(self) -> int:
        """Return a time at or above every write acknowledged before this call."""
        options = self._core.options
        return await self._core.reader.time_for(self._table, ReadSpec(), options.timeout_ms)

    async def times(self, since: int, until: int, limit: int) -> tuple[int, Times]:
        """Return the times of the first changes of (since, until], and the time through which they are all.

        Args:
            since: exclusive lower hybrid time.
            until: inclusive upper hybrid time.
            limit: versions that each tablet reads.

        Raises:
            SchemaMismatch: the feed's columns were altered at or before `until`.
        """
        headers: dict[str, pb.ScanHeader] = {}

        def on_header(header: pb.ScanHeader) -> None:
            headers[header.tablet_id] = header

        spec = replace(self._feed, columns=(), net=False, since=since, at=until, limit=limit)
        parts = await self._core.plan(self._table, spec).collect(on_header)
        await self._check_columns(max((h.schema_version for h in headers.values()), default=0))
        times = [np.asarray(b.column("_timestamp")) for part in parts for b in part]
        through = min((h.through for h in headers.values()), default=until)
        found = np.sort(np.concatenate([np.empty(0, np.int64), *times]))
        return through, found[found <= through]

    async def change_tokens(self, since: int, until: int) -> list[bytes]:
        """Return the tokens of the changes of (since, until].

        Args:
            since: exclusive lower hybrid time.
            until: inclusive upper hybrid time.
        """
        spec = replace(self._feed, since=since, at=until)
        tokens = await self._core.plan(self._table, spec).verified()
        return [t.SerializeToString() for t in tokens]

    async def snapshot_end(self, at: int, after: Position | None, rows: int) -> Position | None:
        """Return the position of the last of the next rows of a snapshot; None: no row follows them.

        Args:
            at: hybrid time of the snapshot.
            after: position of the last row before them; None: from the beginning.
            rows: how many.
        """
        schema, left = self._table.schema, rows
        for token in _pieces(await self._tokens(key_names(schema), at), after, None):
            token.ordered, token.limit = True, left
            batches = [b for b in await self._core.reader.collect(token) if b.num_rows]
            left -= sum(b.num_rows for b in batches)
            if left <= 0:
                return token.tablet_id, last_key(schema, batches[-1])
        return None

    async def snapshot_tokens(
        self, at: int, after: Position | None, through: Position | None, split_bytes: int
    ) -> list[bytes]:
        """Return the tokens of the rows of a snapshot between two positions.

        Args:
            at: hybrid time of the snapshot.
            after: position of the last row before them; None: from the beginning.
            through: position of their last row; None: to the end.
            split_bytes: approximate bytes of a token.
        """
        tokens = _pieces(await self._tokens(self.schema.names[:-2], at), after, through)
        core = self._core
        return [
            t.SerializeToString()
            for t in await split_all(core.env, core.reader, tokens, split_bytes)
        ]

    async def _tokens(self, columns: list[str], at: int) -> list[pb.ScanToken]:
        spec = ReadSpec(columns=tuple(columns), where=self._feed.where, at=at)
        return await self._core.plan(self._table, spec).verified()

    def _columns_of(self, schema: Schema) -> list[tuple[int, str, pa.DataType]]:
        """Return id, name and type of the columns that the feed reads."""
        names = self._feed.columns
        return [(c.id, c.name, c.type) for c in schema.columns if names is None or c.name in names]

    async def _check_columns(self, version: int) -> None:
        """Take over a newer schema of the table, if it has the columns of the feed."""
        if version <= self._table.schema.version:
            return
        core, attempts = self._core, Attempts(self._core.env, self._core.options.timeout_ms)
        fresh = await core.locations.open_again(self._table, version, attempts)
        now = self._columns_of(fresh.schema)
        if now != self._columns:
            raise SchemaMismatch(difference([c[1] for c in self._columns], [c[1] for c in now]))
        self._table.follow(fresh)


def _pieces(
    tokens: list[pb.ScanToken], after: Position | None, through: Position | None
) -> list[pb.ScanToken]:
    """Return the tokens that read a snapshot between two positions, in order of tablet.

    Args:
        tokens: of all tablets.
        after: position of the last row before them; None: from the beginning.
        through: position of their last row; None: to the end.
    """
    found = []
    for token in sorted(tokens, key=lambda t: t.tablet_id):
        if after is not None and token.tablet_id == after[0]:
            token.key_lower = after[1] + b"\0"
        if through is not None and token.tablet_id == through[0]:
            token.key_upper = through[1] + b"\0"
        begun = after is None or token.tablet_id >= after[0]
        if begun and (through is None or token.tablet_id <= through[0]):
            found.append(token)
    return found


def difference(before: list[str], now: list[str]) -> str:
    """Return how the columns of two schemas differ, for an error.

    Args:
        before: names of the first.
        now: names of the second.
    """
    added, gone = [n for n in now if n not in before], [n for n in before if n not in now]
    parts = [f"{w}: {', '.join(names)}" for w, names in (("new", added), ("gone", gone)) if names]
    return "columns " + "; ".join(parts) if parts else "a column has another type or place"
