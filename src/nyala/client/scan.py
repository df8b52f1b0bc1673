"""Scan: a read that is described first, and run when its rows are requested."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from nyala.client.checks import OtherNames
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.connection import Connection
from nyala.client.read.ordered_merge import merge, sort_by_key
from nyala.client.read.pandas_types import to_pandas
from nyala.client.read.plan import PlannedTokens, counting
from nyala.client.read.read_spec import ReadSpec, schema_of
from nyala.client.read.side_by_side import SideBySide, sharing
from nyala.client.read.split_tokens import check_split, split_all
from nyala.client.scan_token import ScanToken
from nyala.common.errors import RangesChanged, Unavailable
from nyala.wire.proto import nyala_pb2 as pb

COUNT_COLUMN = "_count"


class Scan(OtherNames):
    """A read that was described. Each method that returns rows runs it again at the same snapshot.

    Made by `Table.scan` and `Table.changes`. Any thread may call, also for the first time.
    """

    def __init__(self, connection: Connection, table: OpenTable, spec: ReadSpec) -> None:
        self._connection = connection
        self._table = table
        # As described, also if another name or column is the table's when the scan is run, or run again.
        self._schema = spec.schema or table.schema
        self._spec = replace(spec, schema=self._schema)
        self._plan = connection.core.plan(table, self._spec)
        self._ages: dict[str, int] = {}

    def __repr__(self) -> str:
        names = ", ".join(self.schema.names)
        return (
            f"<nyala.Scan of {self._table.name!r}: {names}; nothing is read before to_arrow(), "
            "to_pandas(), to_polars(), to_batches() or count()>"
        )

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the rows."""
        return schema_of(self._schema, self._spec)

    @property
    def at(self) -> int:
        """Hybrid time of the snapshot, fixed at first use; 0 with mode "latest"."""
        if not self._plan.is_fixed:
            self._connection.run(self._plan.verified())
        return self._plan.at

    @property
    def age_ms(self) -> int:
        """Age of the oldest tablet's rows when the last run began to read them, with mode "stale"."""
        return max(self._ages.values(), default=0)

    def _on_header(self, header: pb.ScanHeader) -> None:
        self._ages[header.tablet_id] = header.age_ms

    def tokens(
        self, split_bytes: int | None = None, *, count_only: bool = False
    ) -> list[ScanToken]:
        """Return the pieces of this scan, all at one snapshot. A limit holds for each of them.

        Args:
            split_bytes: several pieces per tablet, each of about so many stored bytes of the columns that are
                read, in key order; None: one per tablet that the scan can touch.
            count_only: the pieces give numbers of rows, in the column `COUNT_COLUMN`, instead of rows.

        Raises:
            InvalidArgument: such pieces make no sense, or are too many (4096 of one tablet).
            TimedOut: no replica of some tablet answered.
        """
        if split_bytes is not None:
            check_split(self._spec, split_bytes)
        tokens = self._connection.run(self._plan.verified())
        if split_bytes is not None:
            core = self._connection.core
            tokens = self._connection.run(split_all(core.env, core.reader, tokens, split_bytes))
        if count_only:
            tokens = [counting(t) for t in tokens]
        return [ScanToken(t, self._connection) for t in tokens]

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches as they come, in key order if the scan is ordered.

        Several tablets are read at the same time. Memory is bounded, also if the caller is slow: see
        `scan_ahead_bytes` of `connect`.

        Raises:
            Unavailable: a server failed after some of its rows were delivered, of a scan without order
                (`to_arrow` repeats such a tablet, and an ordered scan resumes); or a range was deleted during
                an ordered scan with mode "latest".
        """
        left = self._spec.limit or None
        for batch in self._batches():
            piece = batch if left is None else batch.slice(0, left)
            if piece.num_rows:
                yield piece
            if left is not None:
                left -= piece.num_rows
                if left <= 0:
                    return

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of one snapshot; a new plan continues with the tablets that were not read."""
        run, plan = self._connection.run, self._plan
        attempts = plan.attempts()
        read: dict[str, None] = {}
        at = rows = 0
        while True:
            planned = run(plan.make_tokens())
            if planned.at != at or not plan.is_fixed:
                read.clear()  # empty so far, and read at another time
                at = planned.at
            ordered = self._spec.ordered
            try:
                for batch in self._merged(planned) if ordered else self._unordered(planned, read):
                    if not plan.fix(at):
                        break  # another thread has rows of another time
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
                run(plan.changed(attempts))

    def _merged(self, planned: PlannedTokens) -> Iterator[pa.RecordBatch]:
        """Yield batches in key order; each tablet has sent its first before any goes out."""
        tokens = sharing(planned.tokens, self._connection.scan_ahead_bytes)
        streams = [self._stream(t) for t in tokens]
        if streams:
            yield from merge(self._schema, streams)

    def _unordered(self, planned: PlannedTokens, read: dict[str, None]) -> Iterator[pa.RecordBatch]:
        """Yield batches of the tablets that are not in `read`, as they come; those of changes one by one.

        Args:
            planned: the tablets.
            read: ids of tablets; each that is read to its end is added.
        """
        core = self._connection.core
        tokens = [t for t in planned.tokens if t.tablet_id not in read]
        groups = [[t] for t in tokens] if self._spec.changes else [tokens]
        for some in groups:
            reading = SideBySide(core.env, core.reader, some, self._on_header)
            for found in self._connection.iterate(reading.run()):
                if found.batch is None:
                    read[found.token.tablet_id] = None
                else:
                    yield found.batch

    def _stream(self, token: pb.ScanToken) -> Iterator[pa.RecordBatch]:
        return self._connection.iterate(
            self._connection.core.reader.run(token, on_header=self._on_header)
        )

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        parts = self._connection.run(self._plan.collect(self._on_header))
        batches = [b for part in parts for b in part]
        if not batches:
            return self.schema.empty_table()
        table = pa.Table.from_batches(batches)
        if self._spec.ordered and len(parts) > 1:
            table = sort_by_key(self._schema, table)
        return table.slice(0, self._spec.limit) if self._spec.limit else table

    def to_pandas(self) -> Any:
        """Return all rows as a pandas frame, with nullable types where numpy's would change values."""
        return to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """Return all rows as a polars frame; needs polars."""
        import polars

        return polars.from_arrow(self.to_arrow())

    def count(self) -> int:
        """Return the number of rows, counted at the servers (change feeds, and limits: here)."""
        if self._spec.changes or self._spec.limit:
            return len(self.to_arrow())
        parts = self._connection.run(self._plan.collect(self._on_header, count_only=True))
        counts = [n for part in parts for b in part for n in b.column(COUNT_COLUMN).to_pylist()]
        return int(sum(counts))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the rows as an Arrow C stream (polars, duckdb, pandas and others read it)."""
        reader = pa.RecordBatchReader.from_batches(self.schema, self.to_batches())
        return reader.__arrow_c_stream__(requested_schema)
