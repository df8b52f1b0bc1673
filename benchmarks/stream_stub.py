"""A Python source and a Python sink of Spark's streams that do nothing: Spark's own share of a micro-batch.

The source yields changes of the benchmark's table from memory; the sink counts the rows that it is given.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

BATCH_ROWS = 250_000
SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("_op", pa.string(), nullable=False),
        pa.field("_timestamp", pa.int64(), nullable=False),
    ]
)


@cache
def _batch() -> pa.RecordBatch:
    numbers = np.arange(BATCH_ROWS)
    texts = pa.array([f"row {n}" for n in numbers])
    words = pa.repeat("update", BATCH_ROWS)
    stamps = pa.array(np.full(BATCH_ROWS, 1 << 60))
    arrays = [pa.array(numbers), pa.array(numbers * 7), texts, words, stamps]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class StubStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Gives one batch each time it is started."""

    def __init__(self, count: int, parts: int, size: int) -> None:
        self._count, self._parts, self._size = count, parts, size
        self._end: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self._end = None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self._end is None:
            self._end = {"batch": start["batch"] + 1}
        return self._end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        each = -(-self._count // self._parts)
        return [InputPartition(min(each, self._count - each * n)) for n in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value
        while left > 0:
            yield _batch().slice(0, min(left, self._size))
            left -= self._size


@dataclass
class Counted(WriterCommitMessage):
    """Number of rows of a task."""

    rows: int


class StubStreamWriter(DataSourceStreamArrowWriter):
    """Counts rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        return Counted(sum(b.num_rows for b in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


class StubStream(DataSource):
    """`format("stub_stream")`: options `rows`, `parts`, `size` (of a record batch) of its source."""

    @classmethod
    def name(cls) -> str:
        return "stub_stream"

    def schema(self) -> StructType:
        return from_arrow_schema(SCHEMA)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        size = int(self.options.get("size", BATCH_ROWS))
        parts = int(self.options.get("parts", "8"))
        return StubStreamReader(int(self.options["rows"]), parts, size)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return StubStreamWriter()
