"""The data source `nyala` of PySpark's Python Data Source API.

Options of both sides: `table` (required), `masters` (or NYALA_MASTERS in the driver's environment), and `ca`,
`cert` and `key` (files on the driver's machine, whose contents tasks get).
Of reads: `columns` (names, by commas; empty: rows without values), `where` (rows wanted, in the language of
`Table.scan`), `at` (a hybrid time; default: one snapshot, taken by `load()`), `hold_s` (seconds for which
that snapshot stays readable; default 3600), `split_bytes` (about what one partition reads; default: a
tablet), `pushdown`. Of streams: see `spark/stream_options.py`. Of writes: see `spark/writes/options.py`.

`pushdown` sends Spark's own filters to the servers. It is off by default, as PySpark 4.3 keeps the plan
once per `load()`, not once per scan: another query over the same frame without a filter, or a self-join,
would get the rows of an earlier filter.
"""

import sys
from typing import TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import BooleanType, DoubleType, FloatType, StructField, StructType

from nyala.common.errors import Forbidden, InvalidArgument
from nyala.spark.carried import carried
from nyala.spark.clients import process_client
from nyala.spark.options import check_known, flag, hold_s, split, split_bytes, where
from nyala.spark.reader import PlainReader, PushingReader, ReadOptions, print_snapshot
from nyala.spark.stream_errors import RUN_AGAIN, naming_table
from nyala.spark.stream_options import STARTING, StreamOptions, check_columns
from nyala.spark.stream_reader import TableStreamReader
from nyala.spark.writes.atomic import AtomicWriter
from nyala.spark.writes.options import WriteOptions
from nyala.spark.writes.stream import RefusedStreamWriter, StreamTableWriter
from nyala.spark.writes.writer import TableWriter

T = TypeVar("T")
ROW_COLUMN = "_row"
"""The only column of a frame that is read without columns; it is always null."""
NAMES_OF_READS = (
    "at", "ca", "cert", "columns", "hold_s", "key", "masters", "pushdown", "split_bytes", "table", "where",
)  # fmt: skip
PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class NyalaSource(DataSource):
    """`format("nyala")`. Made in the driver's Python worker; readers and writers are sent to tasks.

    Spark takes the columns at `load()`, and plans each query over a frame separately. The snapshot is taken
    together with the columns, so that all queries over a frame, and all its uses in one query, read the same
    rows.
    """

    _at = 0
    _table_id = ""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return "nyala"

    def schema(self) -> StructType:
        """Return the columns that a read gives: all, or those of the option `columns`; take the snapshot."""
        if STARTING in self.options:
            return self._stream_schema()
        name, masters = where(self.options)
        names = None if self._counts() else self.options.get("columns")
        lives_s = hold_s(self.options)
        carried(self.options, masters)
        with naming_table(name, RUN_AGAIN):
            table = process_client(masters).table(name)
        self._table_id = table.id
        scan = table.scan(columns=split(names) if names else None, at=self._asked_at() or None)
        if not self._asked_at():
            self._at = scan.at
            print_snapshot(name, self._at)
            if lives_s:
                table.hold(self._at, lives_s)
        if self._counts():
            return StructType([StructField(ROW_COLUMN, BooleanType())])
        return from_arrow_schema(scan.schema, prefer_timestamp_ntz=True)

    def _counts(self) -> bool:
        """Return whether no column is wanted, that is, option `columns` is given and empty."""
        return not self.options.get("columns", "*").strip()

    def _stream_schema(self) -> StructType:
        """Return the columns of a stream. Spark does not tell for what it asks: `starting` does."""
        options = StreamOptions.of(self.options)
        carried(self.options, options.masters)
        with naming_table(options.table, RUN_AGAIN):
            table = process_client(options.masters).table(options.table)
        changes = table.changes(0, columns=options.columns, where=options.where)
        check_columns(options.table, changes.schema)
        return from_arrow_schema(changes.schema, prefer_timestamp_ntz=True)

    def _asked_at(self) -> int:
        at = self.options.get("at", "0")
        if not at.isdecimal():
            raise InvalidArgument(
                f"option at={at!r}: it is a hybrid time, the number that client.now() gives"
            )
        return int(at)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader; one with filter push-down only if the option is set and Spark supports it."""
        table, masters = where(self.options)
        if STARTING in self.options:
            raise InvalidArgument(
                f'option "{STARTING}" is of streams: use spark.readStream, or leave it out and name the time '
                'of a batch read with option "at"'
            )
        check_known(self.options, NAMES_OF_READS, "a batch read")
        options = ReadOptions(
            table=table,
            masters=masters,
            columns=() if self._counts() else tuple(schema.fieldNames()),
            where=self.options.get("where", ""),
            at=self._asked_at() or self._at,
            arrow=to_arrow_schema(schema, timezone="UTC"),
            floats=tuple(f.name for f in schema if isinstance(f.dataType, FloatType | DoubleType)),
            hold_s=hold_s(self.options),
            split_bytes=split_bytes(self.options),
            table_id=self._table_id,
        )
        pushing = flag(self.options, "pushdown", False) and offers_filters()
        return self._with_credentials(
            PushingReader(options) if pushing else PlainReader(options), masters
        )

    def _with_credentials(self, made: T, masters: str) -> T:
        """Return a reader or writer that brings the credentials of the options where it is unpickled."""
        made.__dict__["carried"] = carried(self.options, masters)
        return made

    def streamReader(self, schema: StructType) -> TableStreamReader:
        """Return a reader of a snapshot and of the changes after it."""
        options = StreamOptions.of(self.options)
        made = TableStreamReader(options, to_arrow_schema(schema, timezone="UTC"))
        return self._with_credentials(made, options.masters)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer for one job; with `overwrite` it replaces rows."""
        with naming_table(where(self.options)[0], RUN_AGAIN):
            options = self._write_options(schema, overwrite)
        made = AtomicWriter(options) if options.atomic else TableWriter(options)
        return self._with_credentials(made, options.masters)

    def streamWriter(
        self, schema: StructType, overwrite: bool
    ) -> StreamTableWriter | RefusedStreamWriter:
        """Return a writer of the batches of one query."""
        if overwrite:
            raise InvalidArgument(
                'outputMode("complete") is not offered: a table is changed row by row; use "update" or '
                '"append"'
            )
        try:
            with naming_table(where(self.options)[0]):
                options = self._write_options(schema)
        except Forbidden as err:
            return RefusedStreamWriter(err)
        made = StreamTableWriter.of(options, self.options)
        return self._with_credentials(made, options.masters)

    def _write_options(self, schema: StructType, overwrite: bool = False) -> WriteOptions:
        table, masters = where(self.options)
        carried(self.options, masters)
        frame = to_arrow_schema(schema, timezone="UTC")
        return WriteOptions.of(table, masters, self.options, frame, overwrite=overwrite)


def offers_filters() -> bool:
    """Return whether this Python worker of Spark's driver is the one that calls `pushFilters`.

    Spark starts it only while `spark.sql.python.filterPushdown.enabled` is set. In any other worker, a
    reader that defines `pushFilters` raises, and the session's configuration is not available.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return PUSHING_WORKER in sys.modules or (main is not None and main.name == PUSHING_WORKER)
