"""An atomic job with an id, whose driver a test kills in the middle of it. A program of the tests.

Arguments: the master of Spark, a folder, and `wait` or `run`. Each task makes a file in the folder after its
first batch and one after its last; with `wait` a task stays at its first batch until it is killed.
"""

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

import nyala.spark
from tests.spark.modes.exercise import session
from tests.waiting import wait_until


def noted(batches: Iterator[pa.RecordBatch], folder: str, wait: bool) -> Iterator[pa.RecordBatch]:
    """Pass batches on, and note the first and the end of a task as files.

    Args:
        batches: of the task.
        folder: for the files.
        wait: stay at the first batch.
    """
    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()
    for batch in batches:
        half = batch.num_rows // 2
        yield batch.slice(0, half)
        Path(folder, f"first {number}").touch()
        if wait:
            wait_until(Path(folder, "never").exists, "the driver is killed")
        yield batch.slice(half)
    Path(folder, f"last {number}").touch()


def main(master: str, folder: str, how: str) -> None:
    """Copy a table in one job.

    Args:
        master: see `session`.
        folder: see `noted`; the id of the job too.
        how: `wait` or `run`.
    """
    spark = session(master)
    frame = nyala.spark.read(spark, "from_rows")
    rows = frame.mapInArrow(partial(noted, folder=folder, wait=how == "wait"), frame.schema)
    rows.write.format("nyala").options(table="to_rows", job_id=folder).mode("append").save()
    print("written")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
