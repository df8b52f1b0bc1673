"""`nyala pipeline flights`: loads the year's change stream through Spark, slice by slice. It only writes."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import nyala
from nyala.client.client import Client, connect
from nyala.common.errors import InvalidArgument
from nyala.spark.flights import dataset
from nyala.spark.flights.events import KEY, KINDS, by_key, change_stream, in_delivery_order
from nyala.spark.session import spark_session

TASKS = 4
"""Number of Spark partitions of a slice; two run at a time."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows loaded in one step.

    Attributes:
        number: from 1; 0 stands for the dimension tables.
        until: ISO time: events delivered before it have been loaded.
        operations: in this slice.
        now: a hybrid time at or above every write so far.
        seconds: it took.
    """

    number: int
    until: str
    operations: int
    now: int
    seconds: float


def boundaries(events: DataFrame, slices: int) -> list[datetime]:
    """Return the end of each slice: equal spans of the time over which events are delivered."""
    micros = f.unix_micros("delivered")
    first, last = events.agg(f.min(micros), f.max(micros)).collect()[0]
    step = (last + 1 - first) / slices
    ends = [first + round(step * k) for k in range(1, slices)] + [last + 1]
    return [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=end) for end in ends]


def in_slices(events: DataFrame, ends: list[datetime]) -> DataFrame:
    """Return the events with the number of their slice, from 1, in column `slice`."""
    number = f.lit(1)
    for end in ends[:-1]:
        number = number + (f.col("delivered") >= f.lit(end)).cast("int")
    return events.withColumn("slice", number)


def run_pipeline(
    masters: str,
    *,
    slices: int = 8,
    tablets: int = 4,
    replicas: int = 3,
    folder: Path | None = None,
    on_slice: Callable[[Slice], None] | None = None,
) -> int:
    """Create the tables and load everything.

    Args:
        masters: masters of the cluster.
        slices: steps in which the year is loaded.
        tablets: hash buckets of the flights table.
        replicas: copies of each tablet.
        folder: raw files; None: those that ship with nyala.
        on_slice: called after each step; None: prints one JSON line each.

    Returns:
        Operations written to the flights table.

    Raises:
        AlreadyPresent: one of the tables exists.
        InvalidArgument: no slice.
        NotFound: `folder` lacks a file.
    """
    if slices < 1:
        raise InvalidArgument(f"slices={slices}: the year is loaded in at least one")
    report_slice = on_slice or _print_slice
    spark = spark_session("nyala flights")
    try:
        with connect(masters) as client:
            _create_tables(client, tablets, replicas)
            began = time.monotonic()
            rows = _load_dimensions(spark, client, folder)
            report_slice(Slice(0, "", rows, client.now(), time.monotonic() - began))
            return _load_flights(spark, client, slices, folder, report_slice)
    finally:
        spark.stop()


def _print_slice(done: Slice) -> None:
    print(json.dumps(asdict(done)), flush=True)


def _create_tables(client: Client, tablets: int, replicas: int) -> None:
    for name in ("flights", *dataset.DIMENSIONS):
        schema = dataset.flights_schema() if name == "flights" else dataset.RAW[name]
        hashed = (
            nyala.Partition(hash=[nyala.Hash(list(KEY), tablets)])
            if name == "flights" and tablets > 1
            else None
        )
        client.create_table(
            name, schema, list(dataset.KEYS[name]), hashed, replicas,
            defaults={"cancelled": False} if name == "flights" else None,
        )  # fmt: skip


def _load_dimensions(spark: SparkSession, client: Client, folder: Path | None) -> int:
    rows = 0
    for name in dataset.DIMENSIONS:
        raw = dataset.read(name, folder)
        frame = spark.createDataFrame(raw).coalesce(1)
        _write(frame, name, client.masters, {"op": "upsert"})
        rows += raw.num_rows
    return rows


def _load_flights(
    spark: SparkSession, client: Client, slices: int, folder: Path | None,
    report_slice: Callable[[Slice], None],
) -> int:  # fmt: skip
    flights = spark.createDataFrame(dataset.read("flights", folder))
    events = by_key(change_stream(flights), TASKS).persist()
    ends = boundaries(events, slices)
    numbered = in_slices(events, ends)
    operations = dict(numbered.groupBy("slice").count().collect())
    kinds = {f"kind.{k}": f"{op}: {', '.join(columns)}" for k, (op, columns) in KINDS.items()}
    for number, end in enumerate(ends, 1):
        began = time.monotonic()
        ordered = in_delivery_order(numbered.where(f.col("slice") == number))
        rows = ordered.drop("rank", "turn", "happened", "delivered", "slice")
        _write(rows, "flights", client.masters, {"kind_column": "kind", "atomic": "false", **kinds})
        took_s = time.monotonic() - began
        report_slice(
            Slice(number, end.isoformat(), operations.get(number, 0), client.now(), took_s)
        )
    total = sum(operations.values())
    print(f"{total:,} operations written", file=sys.stderr)
    return total


def _write(frame: DataFrame, table: str, masters: str, options: dict[str, str]) -> None:
    where = {"table": table, "masters": masters}
    frame.write.format("nyala").options(**where, **options).mode("append").save()
