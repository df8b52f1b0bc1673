"""Work items that Spark runs, one in each task, whatever the kind of session."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from nyala.spark.session import registered

T = TypeVar("T")
R = TypeVar("R")
RESULT = "result binary"
_ROW = pa.schema([("result", pa.binary())])


def run_in_tasks(
    spark: SparkSession, items: Sequence[T], work: Callable[[T], R], at_once: int = 0
) -> list[R]:
    """Call a function with each item in a task of its own; return the results in the order of the items.

    A task that fails is tried again by Spark, so that a call may be repeated.

    Args:
        spark: session, also of Spark Connect.
        items: picklable.
        work: picklable, as its results are.
        at_once: most tasks that Spark may run at a time; 0: as many as it has cores.
    """
    if not items:
        return []
    frame = numbers(spark, len(items), at_once)
    packed = [pickle.dumps(item) for item in items]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                done: Any = (number, work(pickle.loads(packed[number])))
                yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(done)])], schema=_ROW)

    found = [pickle.loads(row.result) for row in frame.mapInArrow(run, RESULT).collect()]
    return [result for _, result in sorted(found, key=lambda pair: pair[0])]


def numbers(spark: SparkSession, count: int, at_once: int = 0) -> DataFrame:
    """Return the numbers from 0, one in each partition, or a few in each of `at_once` partitions.

    Args:
        spark: session.
        count: how many.
        at_once: most partitions; 0: not limited.
    """
    return registered(spark).range(0, count, 1, min(count, at_once or count))
