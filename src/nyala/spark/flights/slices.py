"""The slices of the change stream as files, and the streaming query that loads them, each one once."""

import uuid
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from nyala.spark.flights.events import KINDS
from nyala.spark.writes.staging import say

QUERY = "flights"
"""Name of the stream, under which the cluster keeps the last batch."""
TRIES = 3
"""Starts of a query that ends by an error, for instance since a Python process of Spark was too slow."""


class SliceStream:
    """Files of the slices, and the query that writes their events to the table.

    The query reads the files of a slice in the order of their rows, so that the events of a key, which
    are all in one file, take effect in this order. Each slice is one batch: one transaction.

    Args:
        spark: session.
        masters: of the cluster.
        folder: of the files and of the query's checkpoint; a driver that takes over needs the same one.
    """

    def __init__(self, spark: SparkSession, masters: str, folder: Path) -> None:
        self._spark = spark
        self._masters = masters
        self._folder = folder

    def load(self, number: int, events: DataFrame) -> None:
        """Add a slice, unless an earlier driver has, and load what is not loaded yet.

        Args:
            number: of the slice.
            events: of the slice, those of a key in one partition in order of delivery.

        Raises:
            StreamingQueryException: the query has failed too often; nothing of its last batch took effect.
        """
        self._add(number, events)
        for tried in range(1, TRIES + 1):
            try:
                self._start(events).awaitTermination()
                return
            except StreamingQueryException as err:
                if tried == TRIES:
                    raise
                say(f"query {QUERY!r} has ended by an error, and is started again: {err}")

    def _start(self, events: DataFrame) -> StreamingQuery:
        kinds = {f"kind.{kind}": f"{op}: {', '.join(names)}" for kind, (op, names) in KINDS.items()}
        files = self._spark.readStream.schema(events.schema).parquet(
            str(self._folder / "slices" / "*")
        )
        return (
            files.writeStream.format("nyala")
            .queryName(QUERY)
            .options(table="flights", masters=self._masters, new_checkpoint="restart")
            .options(kind_column="kind", **kinds)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    def _add(self, number: int, events: DataFrame) -> None:
        """Write the files of a slice; they appear as a whole, and once."""
        there = self._folder / "slices" / f"{number:04d}"
        if there.exists():
            return
        partial = self._folder / "partial" / uuid.uuid4().hex
        events.write.parquet(str(partial))
        there.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.rename(there)
        except OSError:
            if not there.exists():  # else another driver was faster, with the same events
                raise
