"""The reader of a stream: Spark's calls in the driver, and the reads of the tasks.

Spark makes one in a process of the driver for each query, and another one that it sends to the tasks; only
the first connects to the cluster.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from nyala.client.scan_token import ScanToken
from nyala.common.errors import HistoryGone, SchemaMismatch
from nyala.spark.batches import combined
from nyala.spark.reader import TokenPartition, read_token
from nyala.spark.stream_errors import altered, history_gone, naming_table
from nyala.spark.stream_offset import StreamOffset
from nyala.spark.stream_options import StreamOptions
from nyala.spark.stream_plan import StreamPlan

BATCH_ROWS = 100_000
"""Rows from which a batch is passed to Spark: Spark takes it while the next one is read."""


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of the rows of a snapshot and of the changes after it, or of changes only.

    A batch is the changes of an interval of hybrid time, or a range of keys of one snapshot: the same rows
    whenever it is read.

    Args:
        options: of the stream.
        arrow: schema that Spark expects of every batch.
    """

    def __init__(self, options: StreamOptions, arrow: pa.Schema) -> None:
        self._options = options
        self._arrow = arrow
        self._opened: StreamPlan | None = None

    @property
    def _plan(self) -> StreamPlan:
        if self._opened is None:
            self._opened = StreamPlan(self._options, self._arrow)
        return self._opened

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset of a stream that has not begun."""
        return self._plan.initial.as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options give."""
        rows = self._options.max_rows
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the time at which the query ends."""
        self._plan.end_at_present()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; `start` if there is nothing to read.

        Args:
            start: its beginning.
            limit: of its rows.
        """
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        begin = StreamOffset.of(start)
        with naming_table(self._options.table):
            end = self._plan.next_offset(begin, rows)
        return start if end == begin else end.as_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the parts of a batch."""
        with naming_table(self._options.table):
            tokens = self._plan.tokens(StreamOffset.of(start), StreamOffset.of(end))
        return [TokenPartition(t) for t in tokens] or [TokenPartition(b"")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part in a task. A task that fails is run again by Spark, from the start."""
        assert isinstance(partition, TokenPartition), f"not a partition of this reader: {partition}"
        options, schema = self._options, self._arrow
        try:
            with naming_table(options.table):
                for batch in combined(read_token(partition), BATCH_ROWS):
                    columns = batch.columns
                    if batch.num_columns < len(schema):  # a snapshot
                        rows, at = batch.num_rows, ScanToken.parse(partition.token).at
                        columns = [
                            *columns,
                            pa.repeat("insert", rows),
                            pa.repeat(pa.scalar(at), rows),
                        ]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)
        except HistoryGone as err:
            raise history_gone(options.table, options.hold_s, err) from err
        except SchemaMismatch as err:
            raise altered(options.table, err.message) from err

    def commit(self, end: dict[str, Any]) -> None:
        """Release the history before a batch that Spark has processed."""
        self._plan.move_hold(StreamOffset.of(end))

    def stop(self) -> None:
        """Disconnect. The hold expires by itself, so that the query can be started again meanwhile."""
        if self._opened is not None:
            self._opened.close()
