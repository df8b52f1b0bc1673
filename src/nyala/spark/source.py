"""The data source `nyala` of PySpark's Python Data Source API.

Options of both sides: `table` (required), `masters` (or NYALA_MASTERS in the driver's environment).
Of reads: `columns` (names, by commas), `where` (rows wanted, in the language of `Table.scan`), `at` (a
hybrid time; default: one snapshot, taken by `load()`), `hold_s` (seconds for which that snapshot stays
readable; default 3600), `split_bytes` (about what one partition reads; default: a tablet),
`pushdown`. Of writes: see `spark/writer.py`.

`pushdown` sends Spark's own filters to the servers. It is off by default, as PySpark 4.3 keeps the plan
once per `load()`, not once per scan: another query over the same frame without a filter, or a self-join,
would get the rows of an earlier filter.
"""

import os
import sys
from collections.abc import Mapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DoubleType, FloatType, StructType

from nyala.client.client import ENVIRONMENT, connect
from nyala.client.hold import MAX_S
from nyala.common.errors import InvalidArgument
from nyala.spark.reader import HOLD_S, PlainReader, PushingReader, ReadOptions, print_snapshot
from nyala.spark.writer import TableWriter, WriteOptions

PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class NyalaSource(DataSource):
    """`format("nyala")`. Made in the driver's Python worker; readers and writers are sent to tasks.

    Spark takes the columns at `load()`, and plans each query over a frame separately. The snapshot is taken
    together with the columns, so that all queries over a frame, and all its uses in one query, read the same
    rows.
    """

    _at = 0

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return "nyala"

    def schema(self) -> StructType:
        """Return the columns that a read gives: all, or those of the option `columns`; take the snapshot."""
        name, masters = where(self.options)
        names, hold_s = self.options.get("columns"), self._hold_s()
        with connect(masters) as client:
            table = client.table(name)
            scan = table.scan(columns=split(names) if names else None, at=self._asked_at() or None)
            if not self._asked_at():
                self._at = scan.at
                print_snapshot(name, self._at)
                if hold_s:
                    table.hold(self._at, hold_s)
            return from_arrow_schema(scan.schema, prefer_timestamp_ntz=True)

    def _asked_at(self) -> int:
        at = self.options.get("at", "0")
        if not at.isdigit():
            raise InvalidArgument(
                f"option at={at!r}: it is a hybrid time, the number that client.now() gives"
            )
        return int(at)

    def _hold_s(self) -> int:
        hold_s = self.options.get("hold_s", str(HOLD_S))
        if not hold_s.isdigit() or int(hold_s) > MAX_S:
            raise InvalidArgument(f"option hold_s={hold_s!r}: seconds, at most {MAX_S}; 0: no hold")
        return int(hold_s)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader; one with filter push-down only if the option is set and Spark supports it."""
        table, masters = where(self.options)
        split_bytes = self.options.get("split_bytes", "")
        if split_bytes and (not split_bytes.isdigit() or not 0 < int(split_bytes) < 1 << 63):
            raise InvalidArgument(
                f"option split_bytes={split_bytes!r}: a positive number of bytes, for instance {64 << 20}; "
                "left out: one partition per tablet"
            )
        pushdown = self.options.get("pushdown", "false").lower()
        if pushdown not in ("true", "false"):
            raise InvalidArgument(f"option pushdown={pushdown!r}: write true or false")
        options = ReadOptions(
            table=table,
            masters=masters,
            columns=tuple(schema.fieldNames()),
            where=self.options.get("where", ""),
            at=self._asked_at() or self._at,
            arrow=to_arrow_schema(schema, timezone="UTC"),
            floats=tuple(f.name for f in schema if isinstance(f.dataType, FloatType | DoubleType)),
            hold_s=self._hold_s(),
            split_bytes=int(split_bytes or 0),
        )
        pushing = pushdown == "true" and offers_filters()
        return PushingReader(options) if pushing else PlainReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer for one job."""
        if overwrite:
            raise InvalidArgument(
                'mode("overwrite") is not offered: a table is changed row by row; use mode("append") with '
                'option("op", "upsert"), or drop and create the table first'
            )
        table, masters = where(self.options)
        return TableWriter(
            WriteOptions.of(table, masters, self.options, to_arrow_schema(schema, timezone="UTC"))
        )


def offers_filters() -> bool:
    """Return whether this Python worker of Spark's driver is the one that calls `pushFilters`.

    Spark starts it only while `spark.sql.python.filterPushdown.enabled` is set. In any other worker, a
    reader that defines `pushFilters` raises, and the session's configuration is not available.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return PUSHING_WORKER in sys.modules or (main is not None and main.name == PUSHING_WORKER)


def where(options: Mapping[str, str]) -> tuple[str, str]:
    """Return table and masters of some options.

    Raises:
        InvalidArgument: the table is not named, or no master.
    """
    table = options.get("table", "")
    if not table:
        raise InvalidArgument(
            'name the table: .option("table", "metrics"), or in SQL create temporary view v using nyala '
            "options (table 'metrics'); of create table Spark passes no options to a Python source"
        )
    masters = options.get("masters", "") or os.environ.get(ENVIRONMENT, "")
    if not masters:
        raise InvalidArgument(
            'name the masters: .option("masters", "host:7051,...") or NYALA_MASTERS'
        )
    return table, masters


def split(names: str) -> list[str]:
    """Return the names in a list by commas."""
    return [n.strip() for n in names.split(",") if n.strip()]
