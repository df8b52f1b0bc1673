"""Follows the changes of table `readings`; high values go to table `alarms`, means to a materialized view."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()

dp.create_sink("alarms", "nyala", {"table": "alarms", "query_name": "alarms of readings"})


@dp.append_flow(target="alarms", name="high_values")
def high_values() -> DataFrame:
    """New and changed readings above 100."""
    changes = spark.readStream.format("nyala").option("table", "readings")
    rows = changes.option("starting", "snapshot").option("where", "value > 100").load()
    return rows.where("_op != 'delete'").select("sensor", "at", "value")


@dp.materialized_view
def means() -> DataFrame:
    """Mean value of each sensor."""
    rows = spark.read.format("nyala").option("table", "readings").load()
    return rows.groupBy("sensor").agg(f.avg("value").alias("mean"))
