"""Writes of one Spark task, which Spark may run again at any time and with its rows in another order.

All tries of a task number their requests under the same client ids, so that tablets execute each request
once. A tablet recognises a repeated request by its bytes, and keeps results for `client_result_ttl_s`. A
later try, one with another order of rows, or one on an altered table cannot use these numbers. It writes
idempotent ops under a client id of its own, and refuses others.
"""

import hashlib
import os
from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.client.client import Client, connect
from nyala.client.results import WriteResult
from nyala.client.table import Table
from nyala.common.errors import InvalidArgument, NyalaError, SessionExpired
from nyala.spark.clients import TIMEOUT_MS, check_same

REPEATABLE = (
    "upsert",
    "upsert_ignore",
    "insert_ignore",
    "update",
    "update_ignore",
    "delete_ignore",
)
"""Idempotent ops: writing all rows of a task again leaves the same rows."""
PER_SESSION = 1_000
"""Maximum number of writes under one client id: a tablet keeps 16,384 results of a client."""


class TaskWrites:
    """Writes to one table, of one try of a task. A context manager.

    Args:
        masters: addresses.
        table: its name.
        name: name of the task, unique, and the same at every try.
        since: hybrid time before which no try of it wrote; 0: not known.
        table_id: id of the table; empty: any table of this name.

    Raises:
        NotFound: no such table, or it has another id.
    """

    def __init__(
        self, masters: str, table: str, name: str, since: int = 0, table_id: str = ""
    ) -> None:
        self._masters = masters
        self._name = name
        self._table_name = table
        self._table_id = table_id
        self._writes = 0
        self._own = False
        self._since = since
        self._client, self._table = self._open(self._id(0))

    def __enter__(self) -> "TaskWrites":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _id(self, session: int) -> bytes:
        return hashlib.sha256(f"{self._name} {session}".encode()).digest()[:16]

    def _open(self, client_id: bytes | None) -> tuple[Client, Table]:
        client = connect(
            self._masters, client_id=client_id, since=self._since, timeout_ms=TIMEOUT_MS
        )
        try:
            table = client.table(self._table_name)
            if self._table_id:
                check_same(table, self._table_id)
            return client, table
        except BaseException:  # also when interrupted: the client must be closed
            client.close()
            raise

    def _begin(self, client_id: bytes | None) -> None:
        self._client.close()
        self._client, self._table = self._open(client_id)

    @property
    def primary_key(self) -> list[str]:
        """Names of the key columns, in key order."""
        return self._table.primary_key

    def write(self, ops: Collection[str], send: Callable[[Table], WriteResult]) -> WriteResult:
        """Write the next rows of this task.

        Args:
            ops: those of the rows.
            send: writes the rows.

        Raises:
            SessionExpired: rows of an earlier try cannot be recognised, and these ops are not idempotent.
        """
        if self._own:
            self._check(ops, "an earlier part of this try could not be recognised")
            return send(self._table)
        if self._writes and self._writes % PER_SESSION == 0:
            self._begin(self._id(self._writes // PER_SESSION))
        self._writes += 1
        try:
            return send(self._table)
        except NyalaError as err:
            if not _has_lost_sequence(err):
                raise
            self._check(ops, err.message)
        self._own = True
        self._since = self._client.now()
        self._begin(os.urandom(16))
        return send(self._table)

    def _check(self, ops: Collection[str], why: str) -> None:
        bad = sorted(set(ops) - set(REPEATABLE))
        if bad:
            raise SessionExpired(
                f"this task was run before, and it is unknown which of its rows with op {', '.join(bad)} "
                f"are written ({why}). Rows are recognised for client_result_ttl_s, in the same "
                "order, while the table is not altered. Rows that were written stay; run the job again with "
                f"ops that may be repeated: {', '.join(REPEATABLE)}"
            )


def _has_lost_sequence(err: NyalaError) -> bool:
    """Return whether an earlier try used a sequence number for other rows, or its result is dropped."""
    found: BaseException | None = err
    while found is not None:
        if isinstance(found, SessionExpired):
            return True
        if isinstance(found, NyalaError) and found.details.get("reason") == "OTHER_BYTES":
            return True
        found = found.__cause__
    return False


def in_runs(
    batch: pa.RecordBatch, column: str, keys: Collection[str]
) -> list[tuple[str, pa.RecordBatch]]:
    """Split a batch by the values of a column, into as few pieces as keep the rows of each key in order.

    Args:
        batch: with the column and the keys.
        column: text; the pieces come without it.
        keys: names of the key columns.

    Returns:
        Value and piece, in the order in which they are to be written.

    Raises:
        InvalidArgument: the column has a null.
    """
    values = batch.column(column).cast(pa.string())
    if values.null_count:
        raise InvalidArgument(f"column {column!r} is null in {values.null_count} rows; fill it")
    if not len(values):
        return []
    encoded = values.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    order = np.lexsort((codes, _turns(batch, keys)))
    codes = codes[order]
    moved = batch.drop_columns([column]).take(pa.array(order))
    starts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist()]
    ends = [*starts[1:], len(codes)]
    names = encoded.dictionary.to_pylist()
    return [(names[codes[a]], moved.slice(a, b - a)) for a, b in zip(starts, ends, strict=True)]


def _turns(batch: pa.RecordBatch, keys: Collection[str]) -> npt.NDArray[np.int64]:
    """Return for each row how many earlier ones have its key."""
    groups = np.zeros(batch.num_rows, np.int64)
    for key in keys:
        column = batch.column(key)
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        _, groups = np.unique(groups * (codes.max() + 2) + codes + 1, return_inverse=True)
    order = np.argsort(groups, kind="stable")
    arranged = groups[order]
    begins = np.flatnonzero(np.concatenate([[True], arranged[1:] != arranged[:-1]]))
    sizes = np.diff(np.append(begins, len(arranged)))
    turns = np.empty(len(arranged), np.int64)
    turns[order] = np.arange(len(arranged)) - np.repeat(begins, sizes)
    return turns
