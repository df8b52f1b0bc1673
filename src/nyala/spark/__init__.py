"""nyala for PySpark (extra `spark`): `format("nyala")`, SQL, and functions of data frames."""

from nyala.spark.carried import login_options
from nyala.spark.frames.merge import MergeCounts, merge
from nyala.spark.frames.read import read, register_views
from nyala.spark.frames.tablets import partition_by_tablet
from nyala.spark.query.sql import sql
from nyala.spark.session import registered
from nyala.spark.source import NyalaSource

__all__ = [
    "MergeCounts",
    "NyalaSource",
    "login_options",
    "merge",
    "partition_by_tablet",
    "read",
    "register_views",
    "registered",
    "sql",
]
