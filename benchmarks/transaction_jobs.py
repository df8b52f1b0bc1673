"""Jobs and streams of Spark, for `benchmarks/transactions.py`: atomic beside plain, rates, latency."""

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

import nyala
from benchmarks.report import Report
from benchmarks.stream_stub import StubStream
from nyala.client.client import Client
from nyala.client.table import Table
from nyala.spark.session import spark_session

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("text", pa.string())])
TABLETS, TASKS, LATENCIES, ROUNDS = 8, 8, 10, 3
ATOMIC_RATIO = 1.3
SOURCE_RATE, SINK_RATE = 1e6, 0.2e6
WAIT_S = 120


def measure(report: Report, client: Client, masters: str, count: int) -> None:
    """Add the figures of jobs and streams.

    Args:
        report: of the benchmark.
        client: creates the tables.
        masters: addresses.
        count: number of rows of a job, and of changes of a stream.
    """
    spark = spark_session("nyala benchmark")
    spark.dataSource.register(StubStream)
    try:
        table = _jobs(report, spark, client, masters, count)
        _source(report, spark, masters, table, count)
        _sink(report, spark, client, masters, count)
        _latency(report, spark, client, masters)
    finally:
        spark.stop()


def _create(client: Client, name: str) -> Table:
    return client.create_table(
        name, SCHEMA, ["k"], nyala.Partition(hash=[nyala.Hash(["k"], TABLETS)])
    )


def _rows(spark: SparkSession, count: int) -> DataFrame:
    made = spark.range(0, count, 1, TASKS).withColumnRenamed("id", "k")
    return made.withColumn("v", f.col("k") * 7).withColumn("text", f.concat(f.lit("row "), "k"))


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


KINDS = {
    "plain": ("append", "false"),
    "atomic": ("append", "true"),
    "overwrite": ("overwrite", "true"),
}
"""Mode and option `atomic` of each kind of job."""


def _jobs(report: Report, spark: SparkSession, client: Client, masters: str, count: int) -> Table:
    """Measure jobs with `atomic=false`, atomic ones and ones that replace all rows; return a table.

    The kinds run in turn, each into a new table, after one small job of each kind: the first jobs of a
    session start its workers.
    """
    frame, few = _rows(spark, count), _rows(spark, 10 * TASKS)
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    tables: list[Table] = []
    for number in range(ROUNDS + 1):
        for kind, (mode, atomic) in KINDS.items():
            tables.append(_create(client, f"job_{kind}_{number}"))
            rows = frame if number else few
            options = {"table": tables[-1].name, "masters": masters, "atomic": atomic}
            writer = rows.write.format("nyala").options(**options)
            if kind == "overwrite":
                writer.mode("append").save()
            took_s = _seconds(writer.mode(mode).save)
            if number:
                took[kind].append(took_s)
    for table in tables[:-1]:
        client.drop_table(table.name)
    medians = {kind: statistics.median(found) for kind, found in took.items()}
    for kind, took_s in medians.items():
        report.add(
            f"{kind} job of {count:,} rows", count / took_s, "rows/s",
            f"{took_s / medians['plain']:.2f}x the time of the plain one",
        )  # fmt: skip
    ratio = medians["atomic"] / medians["plain"]
    report.add("time of an atomic job beside a plain one", ratio, "x", at_most=ATOMIC_RATIO)
    return tables[-1]


def _source(report: Report, spark: SparkSession, masters: str, table: Table, count: int) -> None:
    """Measure a stream that reads the changes of a job, all in one batch that nothing stores.

    A batch of one change takes what every batch takes: the plan of Spark, and a task for each tablet.
    """
    with tempfile.TemporaryDirectory() as place:
        source = spark.readStream.format("nyala").options(table=table.name, masters=masters)
        frame = source.option("starting", "snapshot").option("net", "false").load()
        query = _into_nothing(frame, place)
        _run(query)
        least = []
        for value in range(ROUNDS):
            table.upsert([{"k": 0, "v": -value, "text": ""}]).raise_for_errors()
            least.append(_run(query)[1])
        rates = []
        for number in range(1, ROUNDS + 1):
            rows = _rows(spark, count).withColumn("v", f.col("v") + number)
            rows.write.format("nyala").options(table=table.name, masters=masters).mode(
                "append"
            ).save()
            rates.append(_run(query))
    with tempfile.TemporaryDirectory() as place:
        stub = spark.readStream.format("stub_stream").options(rows=count, parts=TABLETS).load()
        idle = _into_nothing(stub, place)
        stub_s = statistics.median(_run(idle)[1] for _ in range(ROUNDS))
    fixed_s = statistics.median(least)
    seen, took_s = sorted(rates, key=lambda found: found[0] / found[1])[ROUNDS // 2]
    report.add("stream source, batch of one change", fixed_s, "s")
    report.add(f"stream source, {seen:,} changes", seen / took_s, "changes/s", at_least=SOURCE_RATE)
    beyond = seen / max(0.001, took_s - fixed_s)
    report.add("stream source, beyond the time of one change", beyond, "changes/s")
    report.add(f"stream source from memory, {count:,} changes", count / stub_s, "changes/s")


def _into_nothing(frame: DataFrame, place: str) -> DataStreamWriter:
    """Return a query that reads what there is, and stores nothing but its place in the stream.

    Args:
        frame: of the stream.
        place: folder of its checkpoint.
    """
    writer = frame.writeStream.format("noop").option("checkpointLocation", place)
    return writer.trigger(availableNow=True)


def _sink(report: Report, spark: SparkSession, client: Client, masters: str, count: int) -> None:
    """Measure a stream of generated rows into a table: small batches, then large ones."""
    took = {}
    for rows in (TASKS, count):
        name = _create(client, f"sink_{rows}").name
        took[rows] = _batch_s(spark, rows, "nyala", name, masters=masters, table=name)
    stub_s = _batch_s(spark, count, "stub_stream", "sink_of_nothing")
    fixed_s, took_s = took[TASKS], took[count]
    report.add(f"stream sink, batch of {TASKS} rows", fixed_s, "s")
    report.add(
        f"stream sink, batch of {count:,} rows", count / took_s, "rows/s", at_least=SINK_RATE
    )
    beyond = count / max(0.001, took_s - fixed_s)
    report.add("stream sink, beyond the time of the small batch", beyond, "rows/s")
    report.add(f"stream sink that does nothing, batch of {count:,} rows", count / stub_s, "rows/s")


def _batch_s(spark: SparkSession, rows: int, sink: str, name: str, **options: str) -> float:
    """Return the median time in seconds of a batch of generated rows into a sink, without the first one.

    Args:
        spark: the session.
        rows: number of rows of a batch.
        sink: format of the sink.
        name: of the query.
        options: of the sink.
    """
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    frame = source.option("numPartitions", TASKS).load()
    frame = frame.select(
        f.col("value").alias("k"), f.col("value").alias("v"), f.lit("x").alias("text")
    )
    with tempfile.TemporaryDirectory() as place:
        writer = frame.writeStream.format(sink).options(**options)
        query = writer.option("checkpointLocation", place).queryName(name).start()
        try:
            _until(partial(_has_batches, query, ROUNDS + 1))
            batches = [p for p in query.recentProgress if p.numInputRows][1 : ROUNDS + 1]
        finally:
            query.stop()
    return statistics.median(p.durationMs["addBatch"] for p in batches) / 1000


def _has_batches(query: StreamingQuery, number: int) -> bool:
    return sum(p.numInputRows > 0 for p in query.recentProgress) >= number


def _latency(report: Report, spark: SparkSession, client: Client, masters: str) -> None:
    """Measure the time from a write to the moment in which a batch of a stream has its row."""
    table = _create(client, "latency")
    arrived: dict[int, float] = {}
    changed = threading.Event()

    def note(frame: DataFrame, _: int) -> None:
        for row in frame.select("k").collect():
            arrived[row.k] = time.perf_counter()
        changed.set()

    source = spark.readStream.format("nyala").options(table=table.name, masters=masters)
    with tempfile.TemporaryDirectory() as place:
        writer = source.option("starting", "snapshot").load().writeStream.foreachBatch(note)
        query = writer.option("checkpointLocation", place).start()
        try:
            took = []
            for key in range(LATENCIES + 1):
                began = time.perf_counter()
                table.upsert([{"k": key, "v": 0, "text": ""}]).raise_for_errors()
                alone = time.perf_counter() - began
                _until(partial(arrived.__contains__, key))
                took.append((arrived[key] - began, alone))
        finally:
            query.stop()
    latency = statistics.median(t for t, _ in took[1:])  # the first one waits for the start
    write = statistics.median(w for _, w in took[1:])
    report.add(
        "write to its row in a batch of a stream, median", latency * 1000, "ms",
        f"{latency / write:.0f}x of the write",
    )  # fmt: skip


def _run(writer: object) -> tuple[int, float]:
    """Run a query until it has read what there is; return its rows and the seconds of its batches."""
    query = writer.start()  # type: ignore[attr-defined]
    query.awaitTermination(3600)
    progress = [p for p in query.recentProgress if p.numInputRows]
    took_ms = sum(p.durationMs["addBatch"] for p in progress)
    return sum(p.numInputRows for p in progress), max(1, took_ms) / 1000


def _until(condition: Callable[[], bool]) -> None:
    """Wait for a state of a query.

    Raises:
        TimeoutError: it did not come.
    """
    end = time.perf_counter() + WAIT_S
    while not condition():
        if time.perf_counter() > end:
            raise TimeoutError(f"the query has not come so far in {WAIT_S} s")
        time.sleep(0.002)
