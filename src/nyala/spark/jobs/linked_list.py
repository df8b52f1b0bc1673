"""Linked lists of rows, as Kudu's integration test has them: a lost or wrong row breaks one.

Each list has rows with keys that are spread over the tablets; each row names the key of the one before. After
failures, restores or copies, `verify` shows whether every row that another one names is there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from nyala.client.client import Client, connect
from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.partitioning.partition_spec import Hash, Partition
from nyala.spark.jobs.comparison import read_table
from nyala.spark.jobs.generated_rows import mixed
from nyala.spark.jobs.reports import Report
from nyala.spark.jobs.tasks import numbers

SCHEMA = pa.schema([
    pa.field("key", pa.int64(), nullable=False), pa.field("before", pa.int64()),
    pa.field("list", pa.int64(), nullable=False), pa.field("place", pa.int64(), nullable=False),
])  # fmt: skip
BATCH_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Verified:
    """The outcome of a verification of the lists of a table.

    Attributes:
        correct: every named row exists and is the one before.
        lists: number of lists.
        rows: number of rows.
        missing: number of rows that are named and do not exist.
        wrong: number of rows that are named by a row that does not follow them.
        unreferenced: number of rows that no row names; one is the end of each list.
        examples: some keys of missing or wrong rows.
    """

    correct: bool
    lists: int
    rows: int
    missing: int
    wrong: int
    unreferenced: int
    examples: list[int]


def verify(
    spark: SparkSession,
    table: str,
    *,
    masters: str,
    load: int = 0,
    lists: int = 4,
    seed: int = 1,
    buckets: int = 4,
    replicas: int = 3,
    expect: int = 0,
    at: int = 0,
    report: Report = str,
) -> Verified:
    """Verify the linked lists of a table; with `load`, write them first.

    Args:
        spark: session.
        table: name of the table; `load` creates it.
        masters: of the cluster.
        load: number of rows of each list to write; 0: verify only.
        lists: number of lists to write.
        seed: of the keys.
        buckets: hash buckets of a created table.
        replicas: of each tablet of a created table.
        expect: number of rows of all lists; 0: not known. Without it the loss of the last rows of a list is
            not noticed.
        at: hybrid time; 0: now.
        report: called with lines about the progress.

    Raises:
        NotFound: there is no such table.
        InvalidArgument: the table has other columns.
    """
    if load < 0 or lists < 1:
        raise InvalidArgument(
            f"load={load}, lists={lists}: at least one list, of no negative length"
        )
    with connect(masters) as client:
        _check_table(client, table, bool(load), buckets, replicas)
    if load:
        _write(spark, table, masters, load, lists, seed)
        report(f"{table}: {lists} lists of {load:,} rows were written")
    rows = read_table(spark, table, masters, at).cache()
    try:
        named = rows.alias("n").where("before is not null")
        joined = named.join(rows.alias("b"), f.col("n.before") == f.col("b.key"), "left")
        follows = (f.col("b.list") == f.col("n.list")) & (f.col("b.place") + 1 == f.col("n.place"))
        missing = joined.where(f.col("b.key").isNull())
        wrong = joined.where(f.col("b.key").isNotNull() & ~follows)
        unreferenced = rows.join(named.select(f.col("before").alias("key")), "key", "left_anti")
        lengths = rows.groupBy("list").agg(f.max("place").alias("last"), f.count("*").alias("n"))
        found = lengths.agg(f.count("*"), f.sum("n"), f.sum(f.col("last") + 1 - f.col("n")))
        counts = [int(n or 0) for n in found.collect()[0]]
        bad = [missing.count(), wrong.count()]
        keys = missing.union(wrong).select("n.before").limit(20).collect() if any(bad) else []
        ends = unreferenced.count()
    finally:
        rows.unpersist()
    whole = counts[2] == 0 and ends == counts[0] and (not expect or counts[1] == expect)
    return Verified(
        correct=whole and not any(bad), lists=counts[0], rows=counts[1], missing=bad[0], wrong=bad[1],
        unreferenced=ends, examples=[row[0] for row in keys],
    )  # fmt: skip


def _check_table(client: Client, table: str, create: bool, buckets: int, replicas: int) -> None:
    if table not in client.tables():
        if not create:
            raise NotFound(
                f"there is no table {table!r}; write lists to a new one with --load ROWS"
            )
        parts = Partition(hash=[Hash(["key"], buckets)]) if buckets > 1 else None
        client.create_table(table, SCHEMA, ["key"], parts, replicas)
    elif client.table(table).schema != SCHEMA:
        raise InvalidArgument(
            f"table {table!r} has no linked lists: its columns are not {', '.join(SCHEMA.names)}; name one "
            "that this job has written"
        )


def _write(
    spark: SparkSession, table: str, masters: str, length: int, lists: int, seed: int
) -> None:
    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for first in range(0, length, BATCH_ROWS):
                    count = min(BATCH_ROWS, length - first)
                    yield rows_of(seed, number, first, count)

    columns = from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True)
    frame = numbers(spark, lists).mapInArrow(made, columns)
    options = {"table": table, "masters": masters, "atomic": "false"}
    frame.write.format("nyala").options(**options).mode("append").save()


def rows_of(seed: int, number: int, first: int, count: int) -> pa.RecordBatch:
    """Return rows of a list.

    Args:
        seed: of the keys.
        number: of the list.
        first: place of the first row.
        count: how many.
    """
    places = np.arange(first, first + count, dtype=np.uint64)
    start = np.uint64(((seed & 0xFFFF) << 48) + (number << 40))
    keys = mixed(places + start).view(np.int64)
    before = mixed(places - np.uint64(1) + start).view(np.int64)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys),
            pa.array(before, mask=places == 0),
            pa.array(np.full(count, number, np.int64)),
            pa.array(places.astype(np.int64)),
        ],
        schema=SCHEMA,
    )
