"""Batch writes with `atomic=false`: rows take effect one by one.

The effect is exactly-once per task, within the limits of `spark/writes/task.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from nyala.spark.writes.options import WriteOptions
from nyala.spark.writes.row_ops import row_ops
from nyala.spark.writes.task import TaskWrites


@dataclass
class TaskDone(WriterCommitMessage):
    """Result of a successful task, sent to the driver."""

    rows: int
    timestamp: int


class TableWriter(DataSourceArrowWriter):
    """Writes one frame, row by row. Pickled to every task."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Write the rows of one task; any row error fails the task and the job."""
        context = TaskContext.get()
        assert context is not None, "a writer runs in a task"
        options = self._options
        name = f"{options.write_id} {context.partitionId()}"
        done = TaskDone(0, 0)
        planned = options.planned.id if options.planned else ""
        with TaskWrites(options.masters, options.table, name, options.since, planned) as task:
            for batch in iterator:
                for ops, send in row_ops(options, task.primary_key, batch):
                    result = task.write(ops, send).raise_for_errors()
                    done.rows += result.rows
                    done.timestamp = max(done.timestamp, result.timestamp)
        return done

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks succeeded: their rows were acknowledged one by one; nothing is left to do."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Some task failed: rows that were acknowledged stay; run the job again with an idempotent op."""
