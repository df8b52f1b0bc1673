"""A job whose first task to come to it kills its own executor, once. A program of the tests.

Arguments: the master of Spark (`-`: that of `spark-submit`), and the path of a file that is made by the kill.
"""

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial

import pyarrow as pa

import nyala.spark
from tests.spark.modes.exercise import session


def parent(pid: int) -> int:
    """Return the parent of a process."""
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[1])


def kill_once(batches: Iterator[pa.RecordBatch], mark: str) -> Iterator[pa.RecordBatch]:
    """Pass batches on; after the first one kill the executor, unless the file exists.

    Args:
        batches: of a task.
        mark: path of the file.
    """
    for batch in batches:
        yield batch
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        os.kill(parent(os.getppid()), signal.SIGKILL)  # above this worker and its daemon


def main(master: str, mark: str) -> None:
    """Copy a table through tasks, one of which kills its executor; print the sum of the copy.

    Args:
        master: see `session`.
        mark: see `kill_once`.
    """
    spark = session(master)
    try:
        frame = nyala.spark.read(spark, "from_rows")
        rows = frame.mapInArrow(partial(kill_once, mark=mark), frame.schema)
        rows.write.format("nyala").option("table", "to_rows").mode("append").save()
        total = nyala.spark.read(spark, "to_rows").selectExpr("sum(v)").first()
        print("killed", os.path.exists(mark), "sum", total[0] if total else None)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
