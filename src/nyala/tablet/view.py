"""An immutable view of a tablet: what scans, look-ups and change feeds read, without copying.

Take it anywhere with `tablet.view()`; read it in lane COMPUTE. Contract: every time passed in is one
at or below which no further operation can be applied (a safe time), and at or above `horizon`.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from nyala.common.ids import ColumnId
from nyala.common.predicate import Predicate
from nyala.common.schema import Schema


class View:
    """One immutable look at a tablet."""

    schema: Schema
    horizon: int

    def scan(
        self,
        at: int,
        columns: Sequence[ColumnId] | None = None,
        where: Predicate | None = None,
        *,
        ordered: bool = False,
        limit: int | None = None,
        batch_rows: int = 65_536,
        batch_bytes: int = 1 << 20,
        after: bytes | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows visible at `at`, in batches."""
        raise AssertionError

    def count(self, at: int, where: Predicate | None = None) -> int:
        """Number of rows visible at `at`; without `where` no column is read."""
        raise AssertionError

    def get(
        self, at: int, keys: pa.RecordBatch, columns: Sequence[ColumnId] | None = None
    ) -> pa.RecordBatch:
        """Rows by key; the last column, int64 `_row`, is the position in `keys`; absent keys are left out."""
        raise AssertionError

    def changes(
        self,
        since: int,
        until: int,
        *,
        net: bool = True,
        where: Predicate | None = None,
        columns: Sequence[ColumnId] | None = None,
        batch_rows: int = 65_536,
        batch_bytes: int = 1 << 20,
    ) -> Iterator[pa.RecordBatch]:
        """What changed in (since, until], by (_timestamp, key); columns plus string `_op`, int64 `_timestamp`."""
        raise AssertionError
