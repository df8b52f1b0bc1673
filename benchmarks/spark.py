"""Spark jobs over a table beside the same jobs over a Python source that yields rows from memory.

Each work is run in turn with both sources, and its figure is the median of the rounds; so the ratios hold on
a busy machine too. The first run of a work, which starts workers, is reported for the count only.
With `--kudu FOLDER --kudu-spark PYTHON` the jobs of kudu-spark are run after them (`spark_kudu.py`).
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pyspark.sql import DataFrame, SparkSession

import nyala
import nyala.spark
from benchmarks import kudu_cluster, spark_kudu
from benchmarks.report import Report
from benchmarks.spark_stub import StubSource
from benchmarks.wide import SCHEMA, rows
from nyala.spark.jobs import backup
from nyala.spark.session import spark_session
from nyala.testing import MiniCluster

ROWS, QUICK_ROWS, BATCH, TABLETS = 8_000_000, 2_000_000, 20_000, 8
ROUNDS, WRITE_ROUNDS = 5, 1
"""Rounds; kudu-spark upserts the rows once more only, which takes it minutes when it is repeated."""
THREE = ("i0", "i1", "d0")
GROUPED = "group by over 3 columns"
TO_KUDU = {
    "upsert": 4.0, "all columns": 2.0, "3 of 9 columns": 2.5, GROUPED: 1.0, "count": 1.0,
    "1 % by key": 1.0,
}  # fmt: skip
"""Minimum ratio to kudu-spark's rate, by work."""
ROOT = Path(__file__).parent.parent


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _in_turn(*works: Callable[[], object]) -> list[float]:
    """Return the median seconds of each of some works, run one after the other in each round."""
    taken = [[_seconds(work) for work in works] for _ in range(ROUNDS)]
    return [statistics.median(one) for one in zip(*taken, strict=True)]


def _stub(spark: SparkSession, count: int, columns: tuple[str, ...] = ()) -> DataFrame:
    options = {"rows": str(count), "parts": str(TABLETS), "columns": ",".join(columns)}
    return spark.read.format("stub").options(**options).load()


def _add_reads(report: Report, spark: SparkSession, count: int) -> dict[str, float]:
    """Add the reads; return the median seconds of each of ours."""
    taken = {}

    def sql(query: str) -> DataFrame:
        return nyala.spark.sql(spark, query)

    first = _seconds(lambda: sql("select count(*) from wide").collect())
    report.add("first count of a session", count / first, "rows/s")
    three = ", ".join(THREE)
    few = count // 100
    pairs: tuple[tuple[str, Callable[[], object], Callable[[], object], float], ...] = (
        ("all columns", lambda: _noop(nyala.spark.read(spark, "wide")),
         lambda: _noop(_stub(spark, count)), 0.8),
        ("3 of 9 columns", lambda: _noop(sql(f"select {three} from wide")),
         lambda: _noop(_stub(spark, count, THREE)), 0.8),
        ("count", lambda: sql("select count(*) from wide").collect(),
         lambda: _stub(spark, count, ("k",)).count(), 0.8),
        ("1 % by key", lambda: _noop(sql(f"select i0, s0 from wide where k < {few}")),
         lambda: _noop(_stub(spark, few, ("i0", "s0"))), 0.8),
    )  # fmt: skip
    for label, ours, theirs, least in pairs:
        ours(), theirs()
        mine, stub = _in_turn(ours, theirs)
        taken[label] = mine
        report.add(f"{label}, stub", count / stub, "rows/s")
        report.add(f"{label}, nyala", count / mine, "rows/s")
        report.add(f"{label}, nyala to stub", stub / mine, "times", at_least=least)
    grouped = "select i0 % 10, sum(i1), sum(d0) from wide group by 1"
    (taken[GROUPED],) = _in_turn(lambda: sql(grouped).collect())
    report.add(f"{GROUPED}, nyala", count / taken[GROUPED], "rows/s")
    return taken


def _add_empty(report: Report, spark: SparkSession, folder: str) -> None:
    nyala.spark.read(spark, "empty").write.parquet(f"{folder}/empty")
    ours, theirs = _in_turn(
        lambda: _noop(nyala.spark.read(spark, "empty")),
        lambda: _noop(spark.read.parquet(f"{folder}/empty")),
    )
    report.add("job over an empty table, more than Parquet", ours - theirs, "s", at_most=1.0)


def _add_writes(
    report: Report, spark: SparkSession, table: nyala.Table, count: int, folder: str
) -> float:
    """Add the writes; return the median seconds of ours. The rows are left in `folder`, as Parquet."""
    nyala.spark.read(spark, "wide").write.parquet(f"{folder}/wide")
    frame = spark.read.parquet(f"{folder}/wide")
    keys = np.random.default_rng(8).permutation(count).astype(np.int64)

    def by_spark() -> None:
        frame.write.format("nyala").option("table", "wide").option("atomic", "false").mode(
            "append"
        ).save()

    def by_client() -> None:
        parts = (rows(keys[at : at + BATCH], at) for at in range(0, count, BATCH))
        table.upsert(parts).raise_for_errors()

    spark_s, client_s = _in_turn(by_spark, by_client)
    report.add("upsert, bulk client", count / client_s, "rows/s")
    report.add("upsert, Spark", count / spark_s, "rows/s")
    report.add("upsert, Spark to bulk client", client_s / spark_s, "times", at_least=0.7)
    return spark_s


def _add_backup(report: Report, spark: SparkSession, masters: str, count: int, folder: str) -> None:
    """Add full backups of the rows, beside Spark's own copy of them from Parquet to Parquet."""
    frame = spark.read.parquet(f"{folder}/wide")
    ours, theirs = _in_turn(
        lambda: backup(spark, ["wide"], f"{folder}/backup", masters=masters, full=True),
        lambda: frame.write.mode("overwrite").parquet(f"{folder}/copy"),
    )
    report.add("backup, Spark alone from Parquet to Parquet", count / theirs, "rows/s")
    report.add("backup, nyala", count / ours, "rows/s")
    report.add("backup, time of nyala to Spark alone", ours / theirs, "times", at_most=2.0)


def _add_kudu(report: Report, ours: dict[str, float], count: int, folder: str) -> None:
    found = kudu_cluster.programs()
    if found is None:
        return
    theirs = spark_kudu.seconds(found, f"{folder}/wide", count, ROUNDS, WRITE_ROUNDS, THREE)
    for label, least in TO_KUDU.items():
        report.add(f"{label}, kudu-spark", count / theirs[label], "rows/s")
        times = theirs[label] / ours[label]
        report.add(f"{label}, nyala to kudu-spark", times, "times", at_least=least)


def run(quick: bool = False) -> Report:
    """Run the benchmark.

    Args:
        quick: a quarter of the rows.
    """
    count = QUICK_ROWS if quick else ROWS
    about = (
        f"{count:,} wide rows, {TABLETS} tablets, 3 replicas, synced, local[2]; medians of {ROUNDS}"
    )
    report = Report("spark", about)
    with tempfile.TemporaryDirectory() as folder:
        ours = _add_nyala(report, count, folder)
        _add_kudu(report, ours, count, folder)
    return report


def _add_nyala(report: Report, count: int, folder: str) -> dict[str, float]:
    """Add the figures of nyala; return the median seconds of each work that kudu-spark does too."""
    with MiniCluster() as cluster, nyala.connect(cluster.masters) as client:
        parts = nyala.Partition(hash=[nyala.Hash(["k"], TABLETS)])
        table = client.create_table("wide", SCHEMA, ["k"], parts)
        client.create_table("empty", SCHEMA, ["k"], parts)
        keys = np.random.default_rng(7).permutation(count).astype(np.int64)
        loads = (rows(keys[at : at + BATCH], at) for at in range(0, count, BATCH))
        table.upsert(loads).raise_for_errors()
        os.environ["NYALA_MASTERS"] = cluster.masters
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        spark = spark_session("nyala benchmark")
        spark.dataSource.register(StubSource)
        try:
            ours = _add_reads(report, spark, count)
            _add_empty(report, spark, folder)
            ours["upsert"] = _add_writes(report, spark, table, count, folder)
            _add_backup(report, spark, cluster.masters, count, folder)
        finally:
            spark.stop()
    return ours
