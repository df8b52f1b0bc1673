"""The data source `nyala` of PySpark's Python Data Source API (design section 14).

Options of both sides: `table` (required), `masters` (or NYALA_MASTERS in the driver's environment).
Of reads: `columns` (names, by commas), `at` (a hybrid time; default: one snapshot for the whole job,
taken as it is planned). Of writes: see `spark/writer.py`.
"""

import os
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from nyala.client.client import ENVIRONMENT, connect
from nyala.common.errors import InvalidArgument
from nyala.spark.reader import PlainReader, PushingReader, ReadOptions
from nyala.spark.writer import TableWriter, WriteOptions

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class NyalaSource(DataSource):
    """`format("nyala")`. Made in the driver's Python worker; readers and writers are sent to tasks."""

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return "nyala"

    def schema(self) -> StructType:
        """Return the columns that a read gives: all, or those of the option `columns`."""
        table, masters = where(self.options)
        names = self.options.get("columns")
        with connect(masters) as client:
            scan = client.table(table).scan(columns=split(names) if names else None)
            return from_arrow_schema(scan.schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader; one that takes filters only when Spark offers them, as it must."""
        table, masters = where(self.options)
        at = self.options.get("at", "0")
        if not at.isdigit():
            raise InvalidArgument(
                f"option at={at!r}: it is a hybrid time, the number that client.now() gives"
            )
        options = ReadOptions(table, masters, tuple(schema.fieldNames()), int(at))
        return PushingReader(options) if pushdown_enabled() else PlainReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer for one job."""
        if overwrite:
            raise InvalidArgument(
                'mode("overwrite") is not offered: a table is changed row by row; use mode("append") with '
                'option("op", "upsert"), or drop and create the table first'
            )
        table, masters = where(self.options)
        return TableWriter(WriteOptions.of(table, masters, self.options, schema.fieldNames()))


def pushdown_enabled() -> bool:
    """Whether Spark will call `pushFilters`; a reader that defines it while this is off raises."""
    session = SparkSession.getActiveSession()
    if session is not None:
        return str(session.conf.get(PUSHDOWN, "false")).lower() == "true"
    return os.environ.get("NYALA_SPARK_PUSHDOWN", "") == "true"


def where(options: Mapping[str, str]) -> tuple[str, str]:
    """Return table and masters of some options.

    Raises:
        InvalidArgument: the table is not named, or no master.
    """
    table = options.get("table", "")
    if not table:
        raise InvalidArgument('name the table: .option("table", "metrics")')
    masters = options.get("masters", "") or os.environ.get(ENVIRONMENT, "")
    if not masters:
        raise InvalidArgument(
            'name the masters: .option("masters", "host:7051,...") or NYALA_MASTERS'
        )
    return table, masters


def split(names: str) -> list[str]:
    """Return the names in a list by commas."""
    return [n.strip() for n in names.split(",") if n.strip()]
