"""A streaming query that copies one table into another, in a process that can be killed.

python -m tests.spark.kills.stream_job MASTERS CHECKPOINT
"""

import sys

from pyspark.sql import functions as f

from nyala.spark.session import spark_session

SOURCE, COPY = "source", "copy"


def main(masters: str, checkpoint: str) -> None:
    """Run the query until it fails or the process ends."""
    spark = spark_session("stream job")
    options = {"table": SOURCE, "masters": masters, "starting": "snapshot", "net": "false"}
    frame = spark.readStream.format("nyala").options(**options).load()
    op = f.when(f.col("_op") == "delete", "delete_ignore").otherwise("upsert")
    writer = frame.select("k", "v", op.alias("op")).writeStream.format("nyala").queryName(COPY)
    writer = writer.options(table=COPY, masters=masters, op_column="op")
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
