"""`nyala pipeline flights`: loads the year's change stream through Spark, slice by slice. It only writes."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import nyala
from nyala.client.client import Client, connect
from nyala.common.errors import AlreadyPresent, InvalidArgument
from nyala.spark.flights import dataset
from nyala.spark.flights.events import KEY, KINDS, by_key, change_stream, in_delivery_order
from nyala.spark.pipelines import Pipeline, StepRun
from nyala.spark.session import spark_session

TASKS = 4
"""Number of Spark partitions of a slice; two run at a time."""
REPEATED = {"insert": "upsert", "update": "update_ignore"}
"""Operation that may be repeated, for each one of the events, which set the same values again."""


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
    standby: bool = False,
) -> int:
    """Create the tables and load everything.

    Args:
        masters: masters of the cluster.
        slices: steps in which the year is loaded.
        tablets: hash buckets of the flights table.
        replicas: copies of each tablet.
        folder: raw files; None: those that ship with nyala.
        on_slice: called after each step; None: prints one JSON line each.
        standby: keep a ledger of the steps; wait while another driver is active, and take over from it. A
            step may be repeated then, so that rows are written with operations that may be repeated.

    Returns:
        Operations written to the flights table, by this driver or others.

    Raises:
        AlreadyPresent: one of the tables exists.
        InvalidArgument: no slice.
        NotFound: `folder` lacks a file.
    """
    if slices < 1:
        raise InvalidArgument(f"slices={slices}: the year is loaded in at least one")
    spark = spark_session("nyala flights")
    try:
        with connect(masters) as client:
            load = FlightsLoad(spark, client, slices, folder, on_slice or _print_slice, standby)
            steps: dict[str, Callable[[], int]] = {
                "check": load.check,
                "tables": partial(load.create_tables, tablets, replicas),
                "dimensions": load.load_dimensions,
                **{f"slice-{n}": partial(load.load_slice, n) for n in range(1, slices + 1)},
            }
            done = _with_ledger(steps, spark, masters) if standby else _alone(steps)
    finally:
        spark.stop()
    total = sum(rows for name, rows in done.items() if name.startswith("slice-"))
    print(f"{total:,} operations written", file=sys.stderr)
    return total


def _alone(steps: Mapping[str, Callable[[], int]]) -> dict[str, int]:
    return {name: work() for name, work in steps.items()}


def _with_ledger(
    steps: Mapping[str, Callable[[], int]], spark: SparkSession, masters: str
) -> dict[str, int]:
    pipeline = Pipeline("flights", masters=masters)
    for name, work in steps.items():

        def step(_: StepRun, work: Callable[[], int] = work) -> int:
            return work()

        pipeline.step(name=name)(step)
    return pipeline.run(spark, standby=True).results


def _print_slice(done: Slice) -> None:
    print(json.dumps(asdict(done)), flush=True)


class FlightsLoad:
    """The steps of the load. Those of a ledger may be repeated, by another process.

    Args:
        spark: session.
        client: of the cluster.
        slices: number of slices.
        folder: raw files; None: those that ship with nyala.
        report_slice: called after each slice.
        repeatable: the rows are written with operations that may be repeated.
    """

    def __init__(
        self,
        spark: SparkSession,
        client: Client,
        slices: int,
        folder: Path | None,
        report_slice: Callable[[Slice], None],
        repeatable: bool,
    ) -> None:
        self._spark = spark
        self._client = client
        self._slices = slices
        self._folder = folder
        self._report = report_slice
        self._repeatable = repeatable

    def check(self) -> int:
        """Refuse a cluster that has one of the tables; return 0.

        Raises:
            AlreadyPresent: it has.
        """
        known = self._client.tables()
        for name in ("flights", *dataset.DIMENSIONS):
            if name in known:
                raise AlreadyPresent(
                    f"table {name!r} exists, and the pipeline creates it; drop or rename it first"
                )
        return 0

    def create_tables(self, tablets: int, replicas: int) -> int:
        """Create the tables that do not exist; return 0.

        Args:
            tablets: hash buckets of the flights table.
            replicas: copies of each tablet.
        """
        known = self._client.tables() if self._repeatable else []
        for name in ("flights", *dataset.DIMENSIONS):
            if name in known:
                continue
            schema = dataset.flights_schema() if name == "flights" else dataset.RAW[name]
            hashed = (
                nyala.Partition(hash=[nyala.Hash(list(KEY), tablets)])
                if name == "flights" and tablets > 1
                else None
            )
            self._client.create_table(
                name, schema, list(dataset.KEYS[name]), hashed, replicas,
                defaults={"cancelled": False} if name == "flights" else None,
            )  # fmt: skip
        return 0

    def load_dimensions(self) -> int:
        """Load the tables beside flights; return the number of rows."""
        began, rows = time.monotonic(), 0
        for name in dataset.DIMENSIONS:
            raw = dataset.read(name, self._folder)
            frame = self._spark.createDataFrame(raw).coalesce(1)
            _write(frame, name, self._client.masters, {"op": "upsert"})
            rows += raw.num_rows
        self._report(Slice(0, "", rows, self._client.now(), time.monotonic() - began))
        return rows

    def load_slice(self, number: int) -> int:
        """Load the events of a slice; return the number of operations.

        Args:
            number: from 1.
        """
        events, ends, operations = self._events
        began = time.monotonic()
        ordered = in_delivery_order(events.where(f.col("slice") == number))
        rows = ordered.drop("rank", "turn", "happened", "delivered", "slice")
        options = {
            f"kind.{kind}": f"{REPEATED[op] if self._repeatable else op}: {', '.join(columns)}"
            for kind, (op, columns) in KINDS.items()
        }
        options |= {"kind_column": "kind", "atomic": "false"}
        _write(rows, "flights", self._client.masters, options)
        took_s, count = time.monotonic() - began, operations.get(number, 0)
        end = ends[number - 1].isoformat()
        self._report(Slice(number, end, count, self._client.now(), took_s))
        return count

    @cached_property
    def _events(self) -> tuple[DataFrame, list[datetime], dict[int, int]]:
        """All events with the number of their slice, the end of each slice, and its number of events."""
        flights = self._spark.createDataFrame(dataset.read("flights", self._folder))
        events = by_key(change_stream(flights), TASKS).persist()
        ends = boundaries(events, self._slices)
        numbered = in_slices(events, ends)
        return numbered, ends, dict(numbered.groupBy("slice").count().collect())


def _write(frame: DataFrame, table: str, masters: str, options: dict[str, str]) -> None:
    where = {"table": table, "masters": masters}
    frame.write.format("nyala").options(**where, **options).mode("append").save()
