"""Writes of rows to one table, for the synchronous API."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from nyala.client.calls.rows import PreparedRows, mixed_rows_of, rows_of
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.connection import Connection
from nyala.client.results import WriteResult
from nyala.client.transactions.staged_writes import part_of
from nyala.client.write.pending_call import Written
from nyala.client.write.staging import PartStage
from nyala.client.write.watch import WriteArguments


class RowWriter:
    """Converts data to the table's schema and writes it; returns when it is acknowledged.

    Args:
        connection: runs the requests.
        table: written to.
    """

    def __init__(self, connection: Connection, table: OpenTable) -> None:
        self._connection = connection
        self._table = table

    def write(self, op: str, data: Any, all_or_nothing: bool, how: WriteArguments) -> WriteResult:
        """Write rows with one operation; raises as `Table.upsert`.

        Args:
            op: a key of `OPS`.
            data: as for `Table.upsert`.
            all_or_nothing: as for `Table.upsert`.
            how: conversions, progress, and the event that stops the write.

        Returns:
            The acknowledged rows, their timestamp and the row errors.
        """
        rows = rows_of(self._table, op, data, all_or_nothing, how)
        return self._send(rows, how)

    def write_mixed(
        self, data: Any, op_column: str, all_or_nothing: bool, how: WriteArguments
    ) -> WriteResult:
        """Write rows that each name their operation; raises as `Table.write`.

        Args:
            data: as for `Table.upsert`, with `op_column`.
            op_column: name of a string column with keys of `OPS`.
            all_or_nothing: as for `Table.upsert`.
            how: conversions, progress, and the event that stops the write.

        Returns:
            The acknowledged rows, their timestamp and the row errors.
        """
        rows = mixed_rows_of(self._table, data, op_column, all_or_nothing, how)
        return self._send(rows, how)

    def _send(self, rows: PreparedRows, how: WriteArguments) -> WriteResult:
        txn = how.get("txn")
        stage = None if txn is None else part_of(self._connection.core, txn)
        made = rows.converted() if rows.in_memory else None
        if made is not None and len(made) == 1 and not rows.watch.active and stage is None:
            done = self._connection.write(self._table, rows.op, made[0], rows.all_or_nothing)
            return rows.result(done)
        with rows.watch:
            done = self._upload(rows.op, rows.batches(made), rows.all_or_nothing, stage)
        return rows.result(done)

    def _upload(
        self,
        op: int,
        batches: Iterator[pa.RecordBatch],
        all_or_nothing: bool,
        stage: PartStage | None,
    ) -> Written:
        """Write batches, or stage them: a failure, and any row error, then refuse the commit."""
        upload = self._connection.upload
        if stage is None:
            return upload(self._table, op, batches, all_or_nothing)
        with stage.writing(self._table) as noted:
            done = upload(self._table, op, batches, all_or_nothing, stage)
            noted.append(done)
        return done
