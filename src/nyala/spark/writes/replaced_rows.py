"""Check that the rows of a job with mode("overwrite") belong to those that it replaces."""

import numpy as np
import pyarrow as pa

from nyala.client.table import Table
from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument, TransactionDenied
from nyala.common.expressions.predicate import TRUE, evaluate
from nyala.common.expressions.where import parse
from nyala.spark.writes.options import WriteOptions, columns_of_condition


def check_replaced(options: WriteOptions, table: Table) -> None:
    """Check that the condition of a job names the columns that it named when the job was planned.

    A rename in between would make it select other rows than those to which the rows of the frame belong. The
    commit checks after it has staged the condition, since tablets refuse one of an earlier version of the
    columns.

    Args:
        options: of the job.
        table: the table, with its present columns.

    Raises:
        TransactionDenied: they are other columns.
    """
    if columns_of_condition(options.replaced, table.definition) != options.replaced_columns:
        raise TransactionDenied(
            f"the columns of table {table.name!r} were renamed while the job ran, so that where="
            f"{options.replaced!r} means other columns than when it began; nothing was written. Run it again"
        )


class ReplacedRows:
    """The condition of the rows that a job replaces, for the rows of one task.

    Args:
        where: the condition; its columns are in the frame.
        table: the table.
    """

    def __init__(self, where: str, table: Table) -> None:
        self._where = where
        self._table = table
        self._predicate = parse(where, table.definition)
        self._rows = 0

    def check(self, batch: pa.RecordBatch) -> None:
        """Check the next rows of the task.

        Raises:
            InvalidArgument: a row does not satisfy the condition; the message has its key.
            SchemaMismatch: a value does not convert to its column.
        """
        first, self._rows = self._rows, self._rows + batch.num_rows
        if self._predicate == TRUE:
            return
        schema, names = self._table.definition, set(batch.schema.names)
        for piece in to_batches(batch, schema, first_row=first):
            columns = {c.id: piece.column(c.name) for c in schema.columns if c.name in names}
            found = evaluate(self._predicate, columns.__getitem__, piece.num_rows)
            kept = found.fill_null(False).to_numpy(zero_copy_only=False)
            if not kept.all():
                number = int(np.flatnonzero(~kept)[0])
                key = {n: piece.column(n)[number].as_py() for n in self._table.primary_key}
                raise InvalidArgument(
                    f"row {first + number} of a task, with the key {key}, does not satisfy where="
                    f"{self._where!r}, so it is none of the rows that the job replaces; filter the frame, or "
                    "change the condition"
                )
            first += piece.num_rows
