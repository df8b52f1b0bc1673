"""nyala for PySpark: `spark.read.format("nyala")` and `df.write.format("nyala")` (extra `spark`)."""

from nyala.spark.source import NyalaSource

__all__ = ["NyalaSource"]
