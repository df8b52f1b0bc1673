"""Batch writes that take effect as a whole: the rows of all tasks at one time, or none.

The order and number of attempts of tasks, speculative ones included, do not matter: the commit names one
attempt of each. With `job_id` a job that is submitted again has no further effect. A job of mode("overwrite")
deletes the rows that it replaces in the same transaction: the commit stages that delete.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from nyala.client.write.staging import StagedPart
from nyala.common.errors import InvalidArgument
from nyala.common.hybrid_time import to_datetime
from nyala.spark.clients import process_client, writing_client
from nyala.spark.writes.options import WriteOptions
from nyala.spark.writes.staging import TaskStaged, abort_parts, commit_parts, say, stage_rows


class AtomicWriter(DataSourceArrowWriter):
    """Writes one frame in one transaction. Made in the driver, pickled to every task and to the commit.

    Args:
        options: of the job; its `write_id` is the id of the transaction.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._done_at = _committed_at(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskStaged:
        """Stage the rows of one task; any row error fails the task and the job."""
        if self._done_at:
            return TaskStaged(0, self._options.write_id, StagedPart("-"))
        return stage_rows(self._options, self._options.write_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the rows of all tasks."""
        options = self._options
        if self._done_at:
            moment = to_datetime(self._done_at).isoformat()
            say(f"job {options.job_id!r} was committed at {moment}; nothing was written again")
            return
        client, key = writing_client(options.masters), options.job_id or None
        done = commit_parts(client, options, options.write_id, messages, key)
        if done.committed_before:
            say(
                f"job {options.job_id!r} was committed by another submission; nothing was written again"
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the rows of all tasks, unless they are committed already."""
        if not self._done_at:
            options = self._options
            abort_parts(options, options.write_id, messages, options.job_id or None)


def _committed_at(options: WriteOptions) -> int:
    """Return the commit time of an earlier submission of the job; 0: there is none."""
    if not options.job_id:
        return 0
    found = process_client(options.masters).find_key(options.job_id)
    if found is not None and found.query:
        raise InvalidArgument(
            f"job_id {options.job_id!r} is the name of a stream, which the query {found.query} writes; use "
            "another id"
        )
    return 0 if found is None else found.at
