"""Delays by day, carrier and origin: a table that follows the change feed of the flights."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from nyala.spark.flights.slices import TRIES
from nyala.spark.frames.read import read
from nyala.spark.writes.staging import say

TABLE = "delay_statistics"
SCHEMA = pa.schema([
    ("day", pa.date32()), ("carrier", pa.string()), ("origin", pa.string()), ("flights", pa.int64()),
    ("cancelled", pa.int64()), ("arrivals", pa.int64()), ("delay_minutes", pa.int64()),
])  # fmt: skip
KEY = ("day", "carrier", "origin")
"""Computed from the primary key of a flight, so that a deleted flight has its group too."""
INTERVAL = "5 seconds"


class DelayStatistics:
    """Keeps the statistics current, by a streaming query over the changes of the flights.

    A batch computes anew the groups in which a flight has changed, from the flights as they are then. So a
    batch may run again, after a restart, without further effect.

    Args:
        spark: session.
        masters: of the cluster.
        checkpoint: folder of the query's checkpoint.
    """

    def __init__(self, spark: SparkSession, masters: str, checkpoint: Path) -> None:
        self._spark = spark
        self._masters = masters
        self._checkpoint = checkpoint
        self._query: StreamingQuery | None = None
        self._failures = 0

    def follow(self) -> None:
        """Start the query, or return if it runs. If it has ended by an error, start it again, a few times.

        Raises:
            StreamingQueryException: it has ended too often.
        """
        if self._query is not None and not self._query.isActive:
            self._ended(self._query.exception())
        if self._query is None:
            self._query = self._changes().trigger(processingTime=INTERVAL).start()

    def finish(self) -> None:
        """Read the changes to their end and stop the query.

        Raises:
            StreamingQueryException: the query has ended by an error too often.
        """
        while True:
            self.follow()
            assert self._query is not None, "follows"
            try:
                self._query.processAllAvailable()
                break
            except StreamingQueryException as err:
                self._ended(err)
        self._query.stop()
        self._query = None

    def _ended(self, err: StreamingQueryException | None) -> None:
        self._query = None
        self._failures += 1
        if err is not None and self._failures >= TRIES:
            raise err
        say(
            f"query {TABLE!r} has ended by an error, and is started again from its checkpoint: {err}"
        )

    def _changes(self) -> DataStreamWriter:
        options = {"table": "flights", "masters": self._masters, "starting": "snapshot"}
        changes = (
            self._spark.readStream.format("nyala")
            .options(**options, columns="arr_delay, cancelled")
            .load()
        )
        writer = changes.writeStream.queryName(TABLE).foreachBatch(self._update)
        return writer.option("checkpointLocation", str(self._checkpoint))

    def _update(self, changes: DataFrame, _: int) -> None:
        """Write the groups of a batch of changes."""
        spark = changes.sparkSession
        groups = _with_day(changes).select(*KEY).distinct().toArrow()
        if not groups.num_rows:
            return
        touched = spark.createDataFrame(groups)
        days = groups["day"].to_pylist()
        span = f"time_hour >= date '{min(days)}' and time_hour < date '{max(days) + timedelta(days=1)}'"
        flights = read(
            spark, "flights", masters=self._masters, where=span,
            columns=["time_hour", "carrier", "flight", "origin", "arr_delay", "cancelled"],
        )  # fmt: skip
        counted = (
            _with_day(flights)
            .groupBy(*KEY)
            .agg(
                f.count("*").alias("flights"),
                f.count_if("cancelled").alias("cancelled"),
                f.count("arr_delay").alias("arrivals"),
                f.coalesce(f.sum("arr_delay"), f.lit(0)).alias("delay_minutes"),
            )
        )
        op = f.when(f.col("flights").isNull(), "delete_ignore").otherwise("upsert")
        rows = touched.join(counted, list(KEY), "left").withColumn("op", op)
        where = {"table": TABLE, "masters": self._masters, "op_column": "op"}
        rows.write.format("nyala").options(**where).mode("append").save()


def _with_day(flights: DataFrame) -> DataFrame:
    return flights.withColumn("day", f.to_date("time_hour"))
