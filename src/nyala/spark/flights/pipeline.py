"""`nyala pipeline flights`: the year's change stream, slice by slice, and statistics that follow it."""

import json
import os
import shutil
import sys
import tempfile
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
from nyala.spark.flights import dataset, statistics
from nyala.spark.flights.events import KEY, by_key, change_stream, in_delivery_order
from nyala.spark.flights.slices import SliceStream
from nyala.spark.flights.statistics import DelayStatistics
from nyala.spark.pipelines import Pipeline, StepRun
from nyala.spark.session import spark_session

TASKS = 4
"""Number of Spark partitions of a slice; two run at a time."""
Step = Callable[["FlightsLoad"], int]


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
    work: Path | None = None,
) -> int:
    """Create the tables, load everything by a streaming query, and keep the delay statistics current.

    Args:
        masters: masters of the cluster.
        slices: steps in which the year is loaded.
        tablets: hash buckets of the flights table.
        replicas: copies of each tablet.
        folder: raw files; None: those that ship with nyala.
        on_slice: called after each step; None: prints one JSON line each.
        standby: keep a ledger of the steps; wait while another driver is active, and take over from it.
        work: folder of the files and checkpoints of the queries while they are needed, the same one for all
            drivers; None: one of this user in the folder for temporary files.

    Returns:
        Operations written to the flights table, by this driver or others.

    Raises:
        AlreadyPresent: one of the tables exists.
        InvalidArgument: no slice.
        NotFound: `folder` lacks a file.
        StreamingQueryException: a query has failed; the run may be continued with `standby`.
    """
    if slices < 1:
        raise InvalidArgument(f"slices={slices}: the year is loaded in at least one")
    base = work or Path(tempfile.gettempdir()) / f"nyala-flights-{os.getuid()}"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    spark = spark_session("nyala flights")
    try:
        with connect(masters) as client:
            source = EventSource(spark, slices, folder)
            report = on_slice or _print_slice

            def load_in(files: Path) -> FlightsLoad:
                return FlightsLoad(spark, client, source, report, files)

            steps: dict[str, Step] = {
                "check": FlightsLoad.check,
                "tables": partial(FlightsLoad.create_tables, tablets=tablets, replicas=replicas),
                "dimensions": FlightsLoad.load_dimensions,
                **{
                    f"slice-{n}": partial(FlightsLoad.load_slice, number=n)
                    for n in range(1, slices + 1)
                },
                "statistics": FlightsLoad.finish_statistics,
            }
            done = (
                _with_ledger(steps, load_in, spark, masters, base)
                if standby
                else _alone(steps, load_in, base)
            )
    finally:
        spark.stop()
    total = sum(rows for name, rows in done.items() if name.startswith("slice-"))
    print(f"{total:,} operations written", file=sys.stderr)
    return total


def _alone(
    steps: Mapping[str, Step], load_in: Callable[[Path], "FlightsLoad"], base: Path
) -> dict[str, int]:
    with tempfile.TemporaryDirectory(dir=base, prefix="alone-") as files:
        load = load_in(Path(files))
        return {name: work(load) for name, work in steps.items()}


def _with_ledger(
    steps: Mapping[str, Step],
    load_in: Callable[[Path], "FlightsLoad"],
    spark: SparkSession,
    masters: str,
    base: Path,
) -> dict[str, int]:
    pipeline = Pipeline("flights", masters=masters)
    loads: dict[str, FlightsLoad] = {}
    for name, work in steps.items():

        def step(turn: StepRun, work: Step = work) -> int:
            if turn.run not in loads:
                loads[turn.run] = load_in(base / f"run-{turn.run}")
            return work(loads[turn.run])

        pipeline.step(name=name)(step)
    done = pipeline.run(spark, standby=True)
    shutil.rmtree(base / f"run-{done.id}", ignore_errors=True)
    return done.results


def _print_slice(done: Slice) -> None:
    print(json.dumps(asdict(done)), flush=True)


class EventSource:
    """The events of the year, with the number of their slice. They are the same in every driver.

    Args:
        spark: session.
        slices: number of slices.
        folder: raw files; None: those that ship with nyala.
    """

    def __init__(self, spark: SparkSession, slices: int, folder: Path | None) -> None:
        self._spark = spark
        self._slices = slices
        self.folder = folder

    def slice(self, number: int) -> tuple[DataFrame, datetime, int]:
        """Return the events of a slice in delivery order, the end of the slice, and their number.

        Args:
            number: from 1.
        """
        events, ends, operations = self._events
        ordered = in_delivery_order(events.where(f.col("slice") == number))
        rows = ordered.drop("rank", "turn", "happened", "delivered", "slice")
        return rows, ends[number - 1], operations.get(number, 0)

    @cached_property
    def _events(self) -> tuple[DataFrame, list[datetime], dict[int, int]]:
        """All events with the number of their slice, the end of each slice, and its number of events."""
        flights = self._spark.createDataFrame(dataset.read("flights", self.folder))
        events = by_key(change_stream(flights), TASKS).persist()
        ends = boundaries(events, self._slices)
        numbered = in_slices(events, ends)
        return numbered, ends, dict(numbered.groupBy("slice").count().collect())


class FlightsLoad:
    """The steps of the load. Each may be repeated, by another process too.

    Args:
        spark: session.
        client: of the cluster.
        source: of the events.
        report_slice: called after each slice.
        files: folder of this run.
    """

    def __init__(
        self,
        spark: SparkSession,
        client: Client,
        source: EventSource,
        report_slice: Callable[[Slice], None],
        files: Path,
    ) -> None:
        self._spark = spark
        self._client = client
        self._source = source
        self._report = report_slice
        self._stream = SliceStream(spark, client.masters, files)
        self._statistics = DelayStatistics(spark, client.masters, files / "statistics")

    def check(self) -> int:
        """Refuse a cluster that has one of the tables; return 0.

        Raises:
            AlreadyPresent: it has.
        """
        known = self._client.tables()
        for name in (*dataset.RAW, statistics.TABLE):
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
        known = self._client.tables()
        for name in dataset.RAW:
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
        if statistics.TABLE not in known:
            self._client.create_table(
                statistics.TABLE, statistics.SCHEMA, list(statistics.KEY), replicas=replicas
            )
        return 0

    def load_dimensions(self) -> int:
        """Load the tables beside flights; return the number of rows."""
        began, rows = time.monotonic(), 0
        for name in dataset.DIMENSIONS:
            raw = dataset.read(name, self._source.folder)
            frame = self._spark.createDataFrame(raw).coalesce(1)
            where = {"table": name, "masters": self._client.masters}
            frame.write.format("nyala").options(**where).mode("append").save()
            rows += raw.num_rows
        self._report(Slice(0, "", rows, self._client.now(), time.monotonic() - began))
        return rows

    def load_slice(self, number: int) -> int:
        """Load the events of a slice; return the number of operations.

        Args:
            number: from 1.
        """
        self._statistics.follow()
        began = time.monotonic()
        events, end, count = self._source.slice(number)
        self._stream.load(number, events)
        took_s = time.monotonic() - began
        self._report(Slice(number, end.isoformat(), count, self._client.now(), took_s))
        return count

    def finish_statistics(self) -> int:
        """Bring the statistics to the end of the changes; return the number of their groups."""
        self._statistics.finish()
        return self._client.table(statistics.TABLE).count()
