"""Tasks and commits of jobs that take effect as a whole: a part of a transaction for each attempt of a task.

The processes of a job share the id of its transaction; none of them has to live as long as the job. While a
task runs, it keeps the stages alive in all tablets of its table.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from nyala.client.client import Client
from nyala.client.results import PartlyWritten
from nyala.client.table import Table
from nyala.client.transactions.keys import MAX_TIMEOUT_S, Key, TransactionToken
from nyala.client.transactions.transaction import Transaction, TransactionPart
from nyala.client.write.staging import StagedPart
from nyala.common.errors import NyalaError
from nyala.spark.clients import writing_client, written_table
from nyala.spark.writes.options import WriteOptions
from nyala.spark.writes.replaced_rows import ReplacedRows, check_replaced
from nyala.spark.writes.row_ops import row_ops

REPLACED_PART = "overwrite"
"""Name of the part with the delete of the rows that a job replaces."""


@dataclass
class TaskStaged(WriterCommitMessage):
    """Result of a successful task, sent to the driver.

    Attributes:
        partition: number of the task, by which parts are ordered.
        transaction: id of the transaction, in hexadecimal digits.
        part: what it has staged.
        query: id of the streaming query; empty: a batch job.
    """

    partition: int
    transaction: str
    part: StagedPart
    query: str = ""


def stage_rows(
    options: WriteOptions, transaction: str, batches: Iterator[pa.RecordBatch], query: str = ""
) -> TaskStaged:
    """Stage the rows of one attempt of a task.

    Args:
        options: of the job.
        transaction: id of its transaction, in hexadecimal digits.
        batches: the rows.
        query: id of the streaming query; empty: a batch job.

    Raises:
        InvalidArgument: a row does not belong to those that the job replaces.
        RowErrors: a row is not valid; nothing of the job takes effect.
        NyalaError: the rows were not staged.
    """
    context = TaskContext.get()
    assert context is not None, "a writer runs in a task"
    partition, attempt = context.partitionId(), context.taskAttemptId()
    token = TransactionToken(transaction, options.masters)
    client = writing_client(options.masters)
    table = written_table(options.masters, options.table, options.planned)
    opened = client.resume_transaction(token, table, timeout_s=MAX_TIMEOUT_S)
    try:
        part = opened.part(f"{partition}-{attempt}")
        _stage(options, table, part, batches)
        return TaskStaged(partition, transaction, part.staged(), query)
    finally:
        opened.leave()


def _stage(
    options: WriteOptions, table: Table, part: TransactionPart, batches: Iterator[pa.RecordBatch]
) -> None:
    """Stage batches as they come: further ones are read while the earlier ones are on their way."""
    replaced = None
    if options.replaced:
        check_replaced(options, table)
        replaced = ReplacedRows(options.replaced, table)

    def checked() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if part.failed:
                return
            if replaced is not None:
                replaced.check(batch)
            yield batch

    if options.kind_column:
        for batch in checked():
            for _, send in row_ops(options, table.primary_key, batch, txn=part):
                send(table).raise_for_errors()
        return
    try:
        if options.op_column:
            done = table.write(checked(), options.op_column, txn=part)
        else:
            done = getattr(table, options.op)(checked(), txn=part)
    except PartlyWritten as err:  # nothing of a part that is not whole takes effect
        raise err.__cause__ if isinstance(err.__cause__, NyalaError) else err from None
    done.raise_for_errors()


def commit_parts(
    client: Client,
    options: WriteOptions,
    transaction: str,
    messages: Sequence[WriterCommitMessage | None],
    key: Key | None = None,
) -> Transaction:
    """Commit what the successful attempts have staged, in the order of their partitions.

    Args:
        client: commits it.
        options: of the job.
        transaction: id of its transaction, in hexadecimal digits.
        messages: of the tasks.
        key: with which it takes effect once; None: it has none.

    Returns:
        The transaction.

    Raises:
        TransactionDenied, TimedOut: nothing of it takes effect.
        OutcomeUnknown: it may have taken effect, or may yet.
    """
    made = resumed(client, options, transaction, messages, key)
    try:
        if options.replaced:  # a part that was not included takes effect first
            part = made.part(REPLACED_PART)
            client.table(options.table).delete_where(options.replaced, txn=part)
            check_replaced(options, client.table(options.table))
        made.commit()
    finally:
        made.leave()
    return made


def abort_parts(
    options: WriteOptions,
    transaction: str,
    messages: Sequence[WriterCommitMessage | None],
    key: Key | None = None,
) -> None:
    """End a transaction without effect, unless it is committed; its stages end by their time if that fails.

    Args:
        options: of the job.
        transaction: id of its transaction, in hexadecimal digits.
        messages: of the tasks; None for those that failed.
        key: its key; None: it has none.
    """
    try:
        made = resumed(writing_client(options.masters), options, transaction, messages, key)
        if not made.abort():
            say(f"transaction {transaction} was committed before its job failed; its rows stay")
    except NyalaError as err:
        say(f"transaction {transaction} was not aborted, and ends by its time: {err.message}")


def resumed(
    client: Client,
    options: WriteOptions,
    transaction: str,
    messages: Sequence[WriterCommitMessage | None],
    key: Key | None,
) -> Transaction:
    """Return a transaction with the parts of some tasks.

    Args:
        client: that will end it.
        options: of the job.
        transaction: its id, in hexadecimal digits.
        messages: of the tasks.
        key: its key; None: it has none.
    """
    token = TransactionToken(transaction, options.masters)
    table = written_table(options.masters, options.table, options.planned)
    made = client.resume_transaction(token, table, key=key)
    try:
        made.include(*(m.part for m in tasks_of(messages)))
    except NyalaError:
        made.leave()
        raise
    return made


def tasks_of(messages: Sequence[WriterCommitMessage | None]) -> list[TaskStaged]:
    """Return the messages of successful tasks, in the order of their partitions."""
    return sorted((m for m in messages if isinstance(m, TaskStaged)), key=lambda m: m.partition)


def say(text: str) -> None:
    """Print a line for the driver's log."""
    print(f"nyala: {text}", file=sys.stderr)
