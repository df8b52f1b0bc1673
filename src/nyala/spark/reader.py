"""Batch reads: one Spark partition per scan token, one snapshot for the job, columns and filters pushed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from nyala.client.client import connect
from nyala.client.scan import ScanToken
from nyala.spark.filters import as_where


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What one read wants.

    Attributes:
        table: name of the table.
        masters: their addresses.
        columns: names, in Spark's order.
        at: snapshot; 0: taken when the job is planned.
    """

    table: str
    masters: str
    columns: tuple[str, ...]
    at: int


@dataclass
class TokenPartition(InputPartition):
    """One scan token on its way to a task."""

    token: bytes


class PlainReader(DataSourceReader):
    """Reads without being offered filters."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._where: list[str] = []

    def partitions(self) -> list[InputPartition]:
        """Plan the read in the driver: tokens at one snapshot."""
        options = self._options
        with connect(options.masters) as client:
            scan = client.table(options.table).scan(
                columns=options.columns,
                where=" and ".join(self._where) or None,
                at=options.at or None,
            )
            tokens = [bytes(t) for t in scan.tokens()]
        return [TokenPartition(t) for t in tokens] or [TokenPartition(b"")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Run one token in a task. A task that fails is run again by Spark, from the start."""
        assert isinstance(partition, TokenPartition), f"not a partition of this reader: {partition}"
        if partition.token:
            yield from ScanToken.parse(partition.token).to_batches()


class PushingReader(PlainReader):
    """Takes the filters that it can say in the servers' language, and gives the others back."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep what can be pushed down; yield what Spark has to evaluate itself."""
        for offered in filters:
            text = as_where(offered)
            if text is None:
                yield offered
            else:
                self._where.append(text)
