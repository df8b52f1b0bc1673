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
from nyala.spark.flights.events import KEY, KINDS, change_stream, in_delivery_order
from nyala.spark.session import spark_session

FIRST, LAST = datetime(2012, 12, 31, tzinfo=UTC), datetime(2014, 1, 3, tzinfo=UTC)
"""All deliveries lie between these."""
TASKS = 4


@dataclass(frozen=True, slots=True)
class Slice:
    """What was loaded in one step.

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


def boundaries(slices: int) -> list[datetime]:
    """Return the end of each slice: equal spans of the year."""
    step = (LAST - FIRST) / slices
    return [FIRST + step * (k + 1) for k in range(slices - 1)] + [LAST + timedelta(0)]


def run_pipeline(
    masters: str,
    *,
    slices: int = 8,
    sample: float = 1.0,
    tablets: int = 4,
    replicas: int = 3,
    folder: Path | None = None,
    on_slice: Callable[[Slice], None] | None = None,
) -> int:
    """Create the tables and load everything.

    Args:
        masters: of the cluster.
        slices: steps in which the year is loaded.
        sample: share of the flights, chosen by key hash.
        tablets: hash buckets of the flights table.
        replicas: copies of each tablet.
        folder: raw files; None: those that ship with nyala.
        on_slice: told of each finished step; None: prints one JSON line each.

    Returns:
        Operations written to the flights table.

    Raises:
        AlreadyPresent: one of the tables exists.
        InvalidArgument: a share or number out of range.
    """
    if not 0 < sample <= 1 or slices < 1:
        raise InvalidArgument(
            f"sample={sample} must lie in (0, 1], slices={slices} must be at least 1"
        )
    tell = on_slice or (lambda done: print(json.dumps(asdict(done)), flush=True))
    spark = spark_session("nyala flights")
    try:
        with connect(masters) as client:
            _create_tables(client, tablets, replicas)
            began = time.monotonic()
            rows = _load_dimensions(spark, client, folder)
            tell(Slice(0, "", rows, client.now(), time.monotonic() - began))
            return _load_flights(spark, client, slices, sample, folder, tell)
    finally:
        spark.stop()


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
        _write(spark.createDataFrame(raw), name, client.masters, {"op": "upsert"})
        rows += raw.num_rows
    return rows


def _load_flights(
    spark: SparkSession, client: Client, slices: int, sample: float, folder: Path | None,
    tell: Callable[[Slice], None],
) -> int:  # fmt: skip
    flights = spark.createDataFrame(dataset.read("flights", folder))
    if sample < 1:
        flights = flights.where(f.pmod(f.xxhash64(*KEY), f.lit(10_000)) < int(sample * 10_000))
    events = change_stream(flights).persist()
    kinds = {f"kind.{k}": f"{op}: {', '.join(columns)}" for k, (op, columns) in KINDS.items()}
    total, begin = 0, FIRST - timedelta(days=1)
    for number, end in enumerate(boundaries(slices), 1):
        began = time.monotonic()
        mine = events.where(
            (f.col("delivered") >= f.lit(begin)) & (f.col("delivered") < f.lit(end))
        )
        ordered = in_delivery_order(mine, TASKS).drop("rank", "turn", "happened", "delivered")
        operations = mine.count()
        _write(ordered, "flights", client.masters, {"kind_column": "kind", **kinds})
        total += operations
        tell(Slice(number, end.isoformat(), operations, client.now(), time.monotonic() - began))
        begin = end
    print(f"{total:,} operations written", file=sys.stderr)
    return total


def _write(frame: DataFrame, table: str, masters: str, options: dict[str, str]) -> None:
    where = {"table": table, "masters": masters}
    frame.write.format("nyala").options(**where, **options).mode("append").save()
