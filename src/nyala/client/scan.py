"""Scan: a read that has been described and not yet run; scan tokens: pieces of it that anyone may run."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from nyala.client.connection import Connection, shared
from nyala.client.locations import OpenTable
from nyala.client.merging import merge, sort_by_key
from nyala.client.planning import ReadSpec
from nyala.common.errors import InvalidArgument
from nyala.common.schema import arrow_schema
from nyala.wire.proto import nyala_pb2 as pb

COUNT_COLUMN = "_count"
_FEED = (
    pa.field("_op", pa.string(), nullable=False),
    pa.field("_timestamp", pa.int64(), nullable=False),
)


class ScanToken:
    """One piece of a scan: a tablet and a snapshot. It may be serialised and run in any process."""

    def __init__(self, message: pb.ScanToken, connection: Connection | None = None) -> None:
        self._message = message
        self._connection = connection
        self._header = pb.ScanHeader()

    @classmethod
    def parse(cls, data: bytes, connection: Connection | None = None) -> "ScanToken":
        """Return the token in some bytes.

        Args:
            data: what `bytes(token)` gave, anywhere.
            connection: who runs it; None: one that this process makes once per cluster.

        Raises:
            InvalidArgument: the bytes are no token.
        """
        try:
            message = pb.ScanToken.FromString(data)
        except (
            Exception
        ) as err:  # protobuf's DecodeError has no public home; anything else is the same
            raise InvalidArgument(f"these {len(data)} bytes are no scan token: {err}") from err
        if not message.tablet_id or not message.masters:
            raise InvalidArgument(
                f"these {len(data)} bytes are no scan token: no tablet or no masters"
            )
        return cls(message, connection)

    def __bytes__(self) -> bytes:
        return self._message.SerializeToString()

    @property
    def tablet_id(self) -> str:
        """The tablet that this token reads."""
        return self._message.tablet_id

    @property
    def at(self) -> int:
        """The snapshot that it reads; 0: the leader's own time."""
        return self._message.at

    @property
    def age_ms(self) -> int:
        """How old the rows of the last run were when their server began to read, with mode "stale"."""
        return self._header.age_ms

    def _runner(self) -> Connection:
        if self._connection is None:
            self._connection = shared(",".join(self._message.masters))
        return self._connection

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Run the token and yield its batches as they come; see `Scan.to_batches`."""
        runner = self._runner()
        return runner.iterate(runner.core.reader.run(self._message, heard=self._header.CopyFrom))

    def to_arrow_batches(self) -> list[pa.RecordBatch]:
        """Run the token to its end, starting over if a server fails in between."""
        runner = self._runner()
        return runner.run(runner.core.reader.collect(self._message, self._header.CopyFrom))


class Scan:
    """A described read. Each method that returns rows runs it anew at the same snapshot.

    Made by `Table.scan` and `Table.changes`.
    """

    def __init__(self, connection: Connection, table: OpenTable, spec: ReadSpec) -> None:
        self._connection = connection
        self._table = table
        self._spec = spec
        self._planned: list[pb.ScanToken] | None = None
        self._ages: dict[str, int] = {}

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the rows."""
        names = self._spec.columns
        columns = self._table.schema.columns
        if names is not None:
            columns = tuple(self._table.schema.column(n) for n in names)
        schema = arrow_schema(columns)
        if not self._spec.changes:
            return schema
        keys = {c.name for c in self._table.schema.key_columns}  # a deleted row has nothing else
        fields = [f if f.name in keys else f.with_nullable(True) for f in schema]
        return pa.schema([*fields, *_FEED])

    def _plan(self) -> list[pb.ScanToken]:
        if self._planned is None:
            core = self._connection.core
            self._planned = self._connection.run(
                core.reader.tokens(self._table, self._spec, core.options.timeout_ms)
            )
        return self._planned

    @property
    def at(self) -> int:
        """The snapshot, fixed when first asked for or first run; 0 with mode "latest"."""
        tokens = self._plan()
        return tokens[0].at if tokens else self._spec.at

    @property
    def age_ms(self) -> int:
        """How old the oldest tablet's rows were as the last run began to read them, with mode "stale"."""
        return max(self._ages.values(), default=0)

    def _heard(self, header: pb.ScanHeader) -> None:
        self._ages[header.tablet_id] = header.age_ms

    def tokens(self) -> list[ScanToken]:
        """Return the pieces of this scan, one per tablet that it can touch, all at one snapshot."""
        return [ScanToken(t, self._connection) for t in self._plan()]

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches as they come, in key order if the scan is ordered.

        Raises:
            Unavailable: a server failed after some of its rows were delivered, of a scan without order;
                `to_arrow` starts such a tablet over, and an ordered scan goes on, by itself.
        """
        left = self._spec.limit or None
        reader = self._connection.core.reader
        streams = [self._connection.iterate(reader.run(t, heard=self._heard)) for t in self._plan()]
        if self._spec.ordered and len(streams) > 1:
            streams = [merge(self._table.schema, streams)]
        for stream in streams:
            for batch in stream:
                piece = batch if left is None else batch.slice(0, left)
                if piece.num_rows:
                    yield piece
                if left is not None:
                    left -= piece.num_rows
                    if left <= 0:
                        return

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        reader = self._connection.core.reader
        parts = self._connection.run(reader.collect_all(self._plan(), self._heard))
        batches = [b for part in parts for b in part]
        if not batches:
            return self.schema.empty_table()
        table = pa.Table.from_batches(batches)
        if self._spec.ordered and len(parts) > 1:
            table = sort_by_key(self._table.schema, table)
        return table.slice(0, self._spec.limit) if self._spec.limit else table

    def to_pandas(self) -> Any:
        """Return all rows as a pandas frame."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return all rows as a polars frame; needs polars."""
        import polars

        return polars.from_arrow(self.to_arrow())

    def count(self) -> int:
        """Return the number of rows, counted at the servers (change feeds, and limits: here)."""
        if self._spec.changes or self._spec.limit:
            return len(self.to_arrow())
        tokens = []
        for token in self._plan():
            counting = pb.ScanToken()
            counting.CopyFrom(token)
            counting.count_only = True
            tokens.append(counting)
        reader = self._connection.core.reader
        parts = self._connection.run(reader.collect_all(tokens, self._heard))
        counts = [n for part in parts for b in part for n in b.column(COUNT_COLUMN).to_pylist()]
        return int(sum(counts))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the rows as an Arrow C stream (polars, duckdb, pandas and others read it)."""
        reader = pa.RecordBatchReader.from_batches(self.schema, self.to_batches())
        return reader.__arrow_c_stream__(requested_schema)
