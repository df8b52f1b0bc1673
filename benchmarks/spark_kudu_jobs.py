"""Jobs of kudu-spark: a program for a Python with PySpark 3.5, which cannot run beside that of nyala.

It reads a request as JSON from its input, and prints one JSON object with the median seconds of each work.
It imports nothing of nyala.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession


def _median(work: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def main() -> None:
    """Write the rows of a Parquet folder to a table, read them, and write them again, as `spark` does."""
    asked = json.load(sys.stdin)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", asked["jar"])
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    options = {"kudu.master": asked["masters"], "kudu.table": asked["table"]}
    source = spark.read.parquet(asked["parquet"])
    sink = source.write.format("kudu").options(**options).option("kudu.operation", "upsert")
    sink.mode("append").save()
    taken = {}
    table = spark.read.format("kudu").options(**options).load()
    few = table.filter(f"k < {asked['few']}").select("i0", "s0")

    def grouped() -> object:  # a frame that is collected again would use the files of its shuffle
        return table.groupBy((table.i0 % 10).alias("g")).sum("i1", "d0").collect()

    for label, work in {
        "all columns": lambda: _noop(table),
        "3 of 9 columns": lambda: _noop(table.select(*asked["three"])),
        "group by over 3 columns": grouped,
        "count": table.count,
        "1 % by key": lambda: _noop(few),
    }.items():
        work()
        taken[label] = _median(work, asked["rounds"])
    taken["upsert"] = _median(lambda: sink.mode("append").save(), asked["write_rounds"])
    spark.stop()
    print("\n" + json.dumps(taken), flush=True)


if __name__ == "__main__":
    main()
