"""Batches of a followed change feed."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from nyala.client.read.pandas_types import to_pandas


@dataclass(frozen=True, slots=True, eq=False)
class ChangeBatch:
    """Changes of a followed table, in order of time. Any Arrow reader accepts it.

    Attributes:
        rows: columns of the table, then `_op` and `_timestamp`, and `_before` if it was asked for.
        through: hybrid time; `follow(since=through)` continues after this batch. If it is above that of the
            batch before, all changes at or below it, and no others, have been returned. Otherwise this batch
            is part of a larger change, which returns from its beginning when it is followed again.
        schema_changed: the columns differ from those of the batch before.
    """

    rows: pa.RecordBatch
    through: int
    schema_changed: bool = False

    @property
    def num_rows(self) -> int:
        """Number of changes; 0: only `through` or the schema is new."""
        return int(self.rows.num_rows)

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of `rows`."""
        return self.rows.schema

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return the changes as dicts."""
        found: list[dict[str, Any]] = self.rows.to_pylist()
        return found

    def to_pandas(self) -> Any:
        """Return the changes as a pandas frame."""
        return to_pandas(pa.Table.from_batches([self.rows]))

    def __len__(self) -> int:
        return self.num_rows

    def __bool__(self) -> bool:
        return True

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object:
        """Export the changes as an Arrow C array."""
        return self.rows.__arrow_c_array__(requested_schema)

    def __repr__(self) -> str:
        changed = ", schema changed" if self.schema_changed else ""
        return f"<nyala.ChangeBatch of {self.num_rows} changes, through {self.through}{changed}>"
