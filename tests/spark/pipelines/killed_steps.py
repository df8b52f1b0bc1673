"""A pipeline whose drivers are killed, each at the next point, until none is left. A program of the tests.

`MARKS` is a folder in which each point leaves a file when it ends a driver; `STOPPED` names a point at which
the driver is stopped instead.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from nyala.spark.pipelines import Pipeline, StepRun

TABLE = "effects"
ROWS = 100
"""Rows of each write."""
pipeline = Pipeline("killed", timeout_ms=2_000)


def point(name: str) -> None:
    """End this driver, unless a driver was ended at this point before."""
    mark = Path(os.environ["MARKS"]) / name
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    stopped = os.environ.get("STOPPED") == name
    os.kill(os.getpid(), signal.SIGSTOP if stopped else signal.SIGKILL)


def rows(step: StepRun, first: int) -> DataFrame:
    """Return rows with keys from a number on, each with the id of its run, in two partitions."""
    frame = step.spark.range(first, first + ROWS, 1, 2).withColumnRenamed("id", "k")
    return frame.selectExpr("k", f"'{step.run}' run")


@pipeline.step
def load(step: StepRun) -> int:
    """Write once; drivers end before it, after it, and in the middle of the job."""
    point("before load")
    driver, marks = os.getpid(), os.environ["MARKS"]

    def kill(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            try:
                os.close(os.open(f"{marks}/in load", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os.kill(driver, signal.SIGKILL)

    frame = rows(step, 0)
    step.write(frame.mapInArrow(kill, frame.schema), TABLE)
    point("after load")
    return ROWS


@pipeline.step
def two(step: StepRun) -> int:
    """Write twice; drivers end between the two, and after them."""
    step.write(rows(step, 1_000), TABLE)
    point("between")
    step.write(rows(step, 2_000), TABLE)
    point("after two")
    return int(step.results["load"]) + 2 * ROWS


@pipeline.step(name="last-rows")
def last(step: StepRun) -> str:
    """Write in a transaction; drivers end before its commit and after it."""
    table = step.client.table(TABLE)
    with step.client.transaction(key=step.key()) as txn:
        table.upsert([{"k": 3_000 + n, "run": step.run} for n in range(ROWS)], txn=txn)
        point("before the commit")
    point("after the commit")
    return step.run
