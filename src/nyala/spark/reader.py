"""Batch reads: one Spark partition per scan token, one snapshot for the job, columns and filters pushed."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from nyala.client.calls.scanning import COUNT_COLUMN
from nyala.client.scan_token import ScanToken
from nyala.common.errors import InvalidArgument
from nyala.common.expressions.where_tokens import MAX_TEXT_BYTES
from nyala.common.hybrid_time import to_datetime
from nyala.spark.batches import combined, empty_rows
from nyala.spark.clients import check_same, process_client
from nyala.spark.filters import as_where
from nyala.spark.options import HOLD_S

MAX_PUSHED_CHARACTERS = MAX_TEXT_BYTES // 5
"""Maximum characters of the filters that are pushed down: the `where` of the options fits beside them."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of one read.

    Attributes:
        table: name of the table.
        masters: their addresses.
        columns: names, in Spark's order; none: the rows are counted, and have one column of nulls.
        where: the user's expression; empty: all rows.
        at: snapshot; 0: taken when the job is planned, since `load()` got its schema from the user.
        arrow: schema that Spark expects of every batch.
        floats: names of the columns of type float or double.
        hold_s: seconds for which the snapshot is held after planning; 0: no hold.
        split_bytes: approximate bytes of a partition; 0: one partition per tablet.
        table_id: id of the table whose snapshot is read; empty: any table of this name.
    """

    table: str
    masters: str
    columns: tuple[str, ...]
    where: str
    at: int
    arrow: pa.Schema
    floats: tuple[str, ...]
    hold_s: int = HOLD_S
    split_bytes: int = 0
    table_id: str = ""


@dataclass
class TokenPartition(InputPartition):
    """A Spark partition: one scan token; empty: no rows."""

    token: bytes


class TableRead:
    """Plan and tasks of one read, whether filters are pushed down or not.

    Args:
        options: options of the read.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._asked: list[str] = [f"({options.where})"] if options.where else []

    @property
    def where(self) -> str | None:
        """Predicate that the servers evaluate; None: every row."""
        return " and ".join(self._asked) or None

    def push(self, filters: list[Filter]) -> Iterable[Filter]:
        """Add filters to `where`; yield those that Spark has to evaluate itself."""
        for offered in filters:
            text = as_where(offered, self._options.floats)
            size = sum(map(len, self._asked)) + len(text or "")
            if text is None or size > MAX_PUSHED_CHARACTERS:
                yield offered
            else:
                self._asked.append(text)

    def partitions(self) -> list[InputPartition]:
        """Plan the read in the driver: tokens at one snapshot, and a hold on its history for `hold_s`.

        The hold expires by itself: Spark does not notify the driver when the last task has read.
        """
        options = self._options
        table = process_client(options.masters).table(options.table)
        if options.table_id:  # another table of this name has no rows at the time of the snapshot
            check_same(table, options.table_id)
        if options.where:
            # raises if it is not a valid expression by itself
            table.scan(where=options.where, at=options.at or None)
        scan = table.scan(
            columns=options.columns or table.primary_key[:1],
            where=self.where,
            at=options.at or None,
        )
        if options.columns:
            _check_types(options, scan.schema)
        tokens = scan.tokens(options.split_bytes or None, count_only=not options.columns)
        if not options.at and tokens:
            print_snapshot(options.table, tokens[0].at)
        if tokens and options.hold_s:
            table.hold(tokens[0].at, options.hold_s)
        return [TokenPartition(bytes(t)) for t in tokens] or [TokenPartition(b"")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Run one token in a task. A task that fails is run again by Spark, from the start."""
        schema = self._options.arrow
        if not self._options.columns:
            for counts in read_token(partition):
                yield from empty_rows(sum(counts[COUNT_COLUMN].to_pylist()), schema)
            return
        for batch in combined(read_token(partition)):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def read_token(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a partition, in a task.

    Args:
        partition: a `TokenPartition`.
    """
    assert isinstance(partition, TokenPartition), f"not a partition of this reader: {partition}"
    if partition.token:
        yield from ScanToken.parse(partition.token).to_batches()


def _check_types(options: ReadOptions, stored: pa.Schema) -> None:
    """Check a user's schema against the types of the table.

    Raises:
        InvalidArgument: names the column.
    """
    for wanted, field in zip(options.arrow, stored, strict=True):
        if wanted.type != field.type:
            raise InvalidArgument(
                f"column {field.name!r} of table {options.table!r} has type {field.type}, but .schema(...) "
                f"gives {wanted.type}; omit .schema(), and cast in Spark"
            )


def print_snapshot(table: str, at: int) -> None:
    """Print that a DataFrame keeps its snapshot."""
    moment = to_datetime(at).isoformat(timespec="milliseconds")
    print(
        f"nyala: this frame reads table {table!r} as of {moment} (hybrid time {at}), at every action; load() "
        "it again for newer rows",
        file=sys.stderr,
    )


class PlainReader(DataSourceReader):
    """A reader without filter push-down. Spark tells the two apart by the presence of `pushFilters`."""

    def __init__(self, options: ReadOptions) -> None:
        self._table_read = TableRead(options)

    def partitions(self) -> list[InputPartition]:
        """See `TableRead.partitions`."""
        return self._table_read.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `TableRead.read`."""
        return self._table_read.read(partition)


class PushingReader(DataSourceReader):
    """A reader that pushes filters down to the servers where they can evaluate them."""

    def __init__(self, options: ReadOptions) -> None:
        self._table_read = TableRead(options)

    @property
    def where(self) -> str | None:
        """See `TableRead.where`."""
        return self._table_read.where

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """See `TableRead.push`."""
        return self._table_read.push(filters)

    def partitions(self) -> list[InputPartition]:
        """See `TableRead.partitions`."""
        return self._table_read.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `TableRead.read`."""
        return self._table_read.read(partition)
