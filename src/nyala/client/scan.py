"""Scan: a read that is described first, and run when its rows are requested."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from nyala.client.calls.scanning import Scanning
from nyala.client.checks import OtherNames
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.connection import Connection
from nyala.client.read.pandas_types import to_pandas
from nyala.client.read.read_spec import ReadSpec
from nyala.client.scan_token import ScanToken
from nyala.common.optional.needed import needed


class Scan(OtherNames):
    """A read that was described. Each method that returns rows runs it again at the same snapshot.

    Made by `Table.scan` and `Table.changes`. Any thread may call, also for the first time.
    """

    def __init__(self, connection: Connection, table: OpenTable, spec: ReadSpec) -> None:
        self._connection = connection
        self._name = table.name
        self._scanning = Scanning(connection.core, table, spec)

    def __repr__(self) -> str:
        names = ", ".join(self.schema.names)
        return (
            f"<nyala.Scan of {self._name!r}: {names}; nothing is read before to_arrow(), "
            "to_pandas(), to_polars(), to_batches() or count()>"
        )

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the rows."""
        return self._scanning.schema

    @property
    def at(self) -> int:
        """Hybrid time of the snapshot, fixed at first use; 0 with mode "latest"."""
        fixed = self._scanning.at
        return self._connection.run(self._scanning.fixed()) if fixed is None else fixed

    @property
    def age_ms(self) -> int:
        """Age of the oldest tablet's rows when the last run began to read them, with mode "stale"."""
        return self._scanning.age_ms

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
        self._scanning.check(split_bytes)
        made = self._connection.run(self._scanning.tokens(split_bytes, count_only=count_only))
        return [ScanToken(t, self._connection) for t in made]

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches as they come, in key order if the scan is ordered.

        Several tablets are read at the same time. Memory is bounded, also if the caller is slow: see
        `scan_ahead_bytes` of `connect`.

        Raises:
            Unavailable: a server failed after some of its rows were delivered, of a scan without order
                (`to_arrow` repeats such a tablet, and an ordered scan resumes); or a range was deleted during
                an ordered scan with mode "latest".
        """
        return self._connection.iterate(self._scanning.batches())

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        return self._scanning.assembled(self._connection.run(self._scanning.collect()))

    def to_pandas(self) -> Any:
        """Return all rows as a pandas frame, with nullable types where numpy's would change values."""
        return to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """Return all rows as a polars frame; needs polars."""
        polars = needed("polars", "to_polars()")
        return polars.from_arrow(self.to_arrow())

    def count(self) -> int:
        """Return the number of rows, counted at the servers (change feeds, and limits: here)."""
        return self._connection.run(self._scanning.count())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the rows as an Arrow C stream (polars, duckdb, pandas and others read it)."""
        reader = pa.RecordBatchReader.from_batches(self.schema, self.to_batches())
        return reader.__arrow_c_stream__(requested_schema)
