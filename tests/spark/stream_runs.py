"""A stream without a Spark session: the calls that Spark makes, in its order, and a copy of the table.

What Spark keeps in a checkpoint is kept here: the offsets that were planned, and the batches that were
committed.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from nyala.spark.source import NyalaSource
from nyala.spark.stream_reader import TableStreamReader

SLOW_WORKER = "worker failed to connect back"
"""Spark gives the Python process of a stream 10 s to start, whatever the machine."""
TRIES = 12
"""Starts of a query until its Python process is in time."""


@dataclass
class Checkpoint:
    """Contents of a checkpoint: the end of each batch, as JSON, and the number of committed batches."""

    planned: list[str] = field(default_factory=list)
    committed: int = 0


def open_reader(masters: str, table: str, **options: str) -> TableStreamReader:
    """Return the reader of a query that is started."""
    source = NyalaSource({"masters": masters, "table": table, "starting": "snapshot"} | options)
    return source.streamReader(source.schema())


class StreamRun:
    """One run of a query, until it is stopped.

    Args:
        reader: of the query.
        checkpoint: of this query, continued.
    """

    def __init__(self, reader: TableStreamReader, checkpoint: Checkpoint | None = None) -> None:
        self.reader = reader
        self.checkpoint = checkpoint or Checkpoint()

    def __enter__(self) -> "StreamRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def _offset(self, batch: int) -> dict[str, Any]:
        """Return the end of a batch; that of -1 is the initial offset, which Spark does not write."""
        planned = self.checkpoint.planned
        return self.reader.initialOffset() if batch < 0 else json.loads(planned[batch])

    def plan(self) -> bool:
        """Plan a batch unless one is planned and not committed; return whether there is one."""
        planned, done = self.checkpoint.planned, self.checkpoint.committed
        if len(planned) > done:
            return True
        start = self._offset(done - 1)
        end = json.dumps(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))
        if planned and end == planned[-1]:
            return False
        planned.append(end)
        return True

    def rows(self, batch: int) -> list[list[dict[str, Any]]]:
        """Return the rows of a planned batch, by partition."""
        parts = self.reader.partitions(self._offset(batch - 1), self._offset(batch))
        return [[r for b in self.reader.read(p) for r in b.to_pylist()] for p in parts]

    def next(self) -> list[dict[str, Any]] | None:
        """Plan, read and commit a batch; None: there is none."""
        if not self.plan():
            return None
        done = self.checkpoint.committed
        found = [row for part in self.rows(done) for row in part]
        self.checkpoint.committed = done + 1
        self.reader.commit(self._offset(done))
        return found

    def through(self) -> int:
        """Return the time of the last offset."""
        return int(json.loads(self.checkpoint.planned[-1])["through"])


def apply(copy: dict[Any, dict[str, Any]], rows: list[dict[str, Any]], key: str = "k") -> None:
    """Apply rows of a stream to a copy of its table, and check that each fits."""
    for row in rows:
        values = {n: v for n, v in row.items() if n not in ("_op", "_timestamp")}
        if row["_op"] == "insert":
            assert values[key] not in copy, f"doubled: {row}"
        else:
            assert values[key] in copy, f"lost before: {row}"
        if row["_op"] == "delete":
            del copy[values[key]]
        else:
            copy[values[key]] = values
