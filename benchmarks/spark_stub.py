"""A Python data source of Spark that yields wide rows from memory, as fast as any Python source can."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from benchmarks.wide import SCHEMA, rows

BATCH_ROWS = 250_000


@cache
def _batch() -> pa.RecordBatch:
    return rows(np.arange(BATCH_ROWS, dtype=np.int64), 1)


class StubReader(DataSourceReader):
    """Reads each partition from memory."""

    def __init__(self, columns: list[str], count: int, parts: int) -> None:
        self._columns, self._count, self._parts = columns, count, parts

    def partitions(self) -> list[InputPartition]:
        each = -(-self._count // self._parts)
        left = [min(each, self._count - each * n) for n in range(self._parts)]
        return [InputPartition(n) for n in left]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        whole, left = _batch().select(self._columns), partition.value
        while left > 0:
            yield whole.slice(0, left)
            left -= BATCH_ROWS


class StubSource(DataSource):
    """`format("stub")`: options `rows`, `parts`, `columns`."""

    @classmethod
    def name(cls) -> str:
        return "stub"

    def _columns(self) -> list[str]:
        names = self.options.get("columns", "")
        return names.split(",") if names else SCHEMA.names

    def schema(self) -> StructType:
        return from_arrow_schema(pa.schema([SCHEMA.field(n) for n in self._columns()]))

    def reader(self, schema: StructType) -> DataSourceReader:
        return StubReader(
            self._columns(), int(self.options["rows"]), int(self.options.get("parts", "8"))
        )
