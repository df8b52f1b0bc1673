"""Check that the rows of a job with mode("overwrite") belong to those that it replaces."""

import numpy as np
import pyarrow as pa

from nyala.client.table import Table
from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument
from nyala.common.predicate import TRUE, evaluate
from nyala.common.where import parse


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
