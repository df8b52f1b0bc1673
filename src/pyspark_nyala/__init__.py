"""Registers `format("nyala")` with PySpark, which looks for `DefaultSource` in modules named pyspark_*."""

from nyala.spark.source import NyalaSource as DefaultSource

__all__ = ["DefaultSource"]
