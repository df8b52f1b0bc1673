"""The sink of streams: each micro-batch takes effect once and as a whole, by its query and number.

The cluster keeps one row for each stream: its query, its last batch, and the id of its table. A batch that
Spark runs again after a restart has no further effect. Spark makes a writer anew for each commit; what the
commit needs is in the messages of the tasks.
"""

import hashlib
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from nyala.client.transactions.keys import CommittedKey, StreamKey
from nyala.common.errors import Forbidden, InvalidArgument
from nyala.spark.clients import writing_client
from nyala.spark.stream_errors import naming_table
from nyala.spark.writes.options import WriteOptions
from nyala.spark.writes.staging import (
    TaskStaged,
    abort_parts,
    commit_parts,
    say,
    stage_rows,
    tasks_of,
)

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
RESTART = "restart"


def stream_name(options: Mapping[str, str]) -> str:
    """Return the name of the stream that a query writes.

    Raises:
        InvalidArgument: it has none.
    """
    name = options.get("query_name", "") or options.get("queryName", "")
    if not name:
        raise InvalidArgument(
            "a stream needs a name, under which the cluster keeps its last batch: "
            "writeStream.queryName('orders'), or option query_name"
        )
    return name


class RefusedStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a query that has no grant on its table any more.

    Spark makes a writer anew for each commit and each abort of a batch. If making the one that aborts failed
    too, the query would end with an error that does not tell why.

    Args:
        refusal: the error.
    """

    def __init__(self, refusal: Forbidden) -> None:
        self._refusal = refusal

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskStaged:
        """Refuse the rows.

        Raises:
            Forbidden: always.
        """
        raise self._refusal

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Refuse the batch.

        Raises:
            Forbidden: always.
        """
        raise self._refusal

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave what is staged, which ends by its time."""
        say(f"batch {batchId} was not aborted, and ends by its time: {self._refusal.message}")


class StreamTableWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of one query.

    Args:
        options: of the query.
        name: of the stream.
        restart: a new query may take over a stream of that name.
    """

    def __init__(self, options: WriteOptions, name: str, restart: bool) -> None:
        self._options = options
        self._name = name
        self._restart = restart

    @classmethod
    def of(cls, options: WriteOptions, given: Mapping[str, str]) -> "StreamTableWriter":
        """Return the writer of a query.

        Args:
            options: of the query, checked.
            given: options as Spark gives them.

        Raises:
            InvalidArgument: no name, or an option that a stream does not have.
        """
        if not options.atomic or options.job_id:
            raise InvalidArgument(
                "atomic=false and job_id are of batch jobs; a stream is atomic by batch, under its name"
            )
        new = given.get("new_checkpoint", "")
        if new not in ("", RESTART):
            raise InvalidArgument(
                f"option new_checkpoint={new!r}: write {RESTART!r}, or leave it out"
            )
        return cls(options, stream_name(given), new == RESTART)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskStaged:
        """Stage the rows of one task of a batch; any row error fails the batch and ends the query."""
        context = TaskContext.get()
        assert context is not None, "a writer runs in a task"
        query = context.getLocalProperty(QUERY_PROPERTY)
        batch = context.getLocalProperty(BATCH_PROPERTY)
        assert query, f"Spark did not set {QUERY_PROPERTY}"
        assert batch, f"Spark did not set {BATCH_PROPERTY}"
        drawn = f"{self._options.write_id} {query} {batch}".encode()
        transaction = hashlib.sha256(drawn).digest()[:16].hex()
        with naming_table(self._options.table):
            return stage_rows(self._options, transaction, iterator, query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a batch, unless it was committed before.

        Raises:
            InvalidArgument: the stream belongs to another query or another table, or batches are missing.
            TransactionDenied, TimedOut: nothing of it takes effect; the query ends, and may be started again.
        """
        options, staged = self._options, tasks_of(messages)
        if not staged:
            say(f"batch {batchId} of stream {self._name!r} has no tasks; it is not recorded")
            return
        with naming_table(options.table):
            self._commit(staged, batchId)

    def _commit(self, staged: list[TaskStaged], batchId: int) -> None:
        """Commit a batch that has tasks."""
        options, first = self._options, staged[0]
        client = writing_client(options.masters)
        known = client.find_key(self._name)
        key = self.key_of(known, first.query, batchId)
        if known is None or known.query != first.query or batchId > known.epoch:
            commit_parts(client, options, first.transaction, staged, key)
            return
        say(
            f"batch {batchId} of stream {self._name!r} is committed already; it has no further effect"
        )
        abort_parts(options, first.transaction, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop the rows of a batch, unless they are committed already."""
        staged = tasks_of(messages)
        for transaction in sorted({m.transaction for m in staged}):
            abort_parts(self._options, transaction, staged)

    def key_of(self, known: CommittedKey | None, query: str, epoch: int) -> StreamKey:
        """Return the key of a batch.

        Args:
            known: last commit of the stream; None: there is none.
            query: id of the query.
            epoch: number of the batch.

        Raises:
            InvalidArgument: the stream belongs to another query or another table, or batches are missing.
        """
        table = self._table_id()
        if known is None or known.query == query:
            if known is not None and known.table not in ("", table):
                raise InvalidArgument(
                    f"stream {self._name!r} has written batch {known.epoch} to the table with the id "
                    f"{known.table}, and the table {self._options.table!r} of this query has the id {table}: "
                    "it was dropped and created again, or the query names another table, and the rows of "
                    "earlier batches are not in it. Nothing was written. To write it from the first batch "
                    "on, start the query with a new checkpointLocation and option new_checkpoint=restart"
                )
            if known is None and epoch:
                raise InvalidArgument(
                    f"this is batch {epoch} of stream {self._name!r}, and the cluster knows no batch of it. "
                    "Either its catalog was rebuilt after all masters were lost (nyala master "
                    "unsafe_rebuild), which loses the last batches of streams and no rows; or the "
                    "checkpoint is of another cluster, or of a stream with another name. Nothing was "
                    "written. After a rebuild, start the query with a new checkpointLocation and the same "
                    "name: its batch 0 begins where its source begins, and rows that an upsert writes "
                    "again stay the same. Otherwise use the cluster and the name that the checkpoint is of"
                )
            if known is not None and epoch > known.epoch + 1:
                raise InvalidArgument(
                    f"batch {epoch} of stream {self._name!r} follows batch {known.epoch} in this cluster: "
                    "the batches between are missing, because the checkpoint belongs to another cluster or "
                    "stream. Use the checkpoint that this stream was written with, or a new one with option "
                    "new_checkpoint=restart"
                )
            return StreamKey(self._name, query, epoch, table=table)
        if not self._restart:
            raise InvalidArgument(
                f"stream {self._name!r} is written by the query {known.query}, up to batch {known.epoch}, "
                f"and this is query {query}: its checkpoint is new, or two queries have one name. Start with "
                "the old checkpoint, use another query name, or take the stream over, from batch 0 of this "
                "query on, with option new_checkpoint=restart. Nothing was written"
            )
        if epoch:
            raise InvalidArgument(
                f"stream {self._name!r} was taken over by the query {known.query}; this query, {query}, has "
                f"lost it at batch {epoch}. Stop one of the two"
            )
        return StreamKey(self._name, query, 0, known.query, table)

    def _table_id(self) -> str:
        planned = self._options.planned
        assert planned is not None, "Spark makes a writer from the options of a query"
        return planned.id
