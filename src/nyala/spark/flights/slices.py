"""The slices of the change stream as files, and the streaming query that loads them, each one once."""

import uuid
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from nyala.spark.flights.events import KINDS

QUERY = "flights"
"""Name of the stream, under which the cluster keeps the last batch."""


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
            StreamingQueryException: the query has failed; nothing of its last batch took effect.
        """
        self._add(number, events)
        kinds = {f"kind.{kind}": f"{op}: {', '.join(names)}" for kind, (op, names) in KINDS.items()}
        files = self._spark.readStream.schema(events.schema).parquet(
            str(self._folder / "slices" / "*")
        )
        query = (
            files.writeStream.format("nyala")
            .queryName(QUERY)
            .options(table="flights", masters=self._masters, new_checkpoint="restart")
            .options(kind_column="kind", **kinds)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

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
