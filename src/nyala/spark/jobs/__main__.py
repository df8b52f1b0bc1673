"""`python -m nyala.spark.jobs NAME ...`, and this file for `spark-submit`."""

import os
import sys

from pyspark.sql import SparkSession

from nyala.client.client import ENVIRONMENT
from nyala.spark.jobs.commands import main
from nyala.spark.session import spark_session

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Variable that `spark-submit` sets for its program."""


def _session() -> SparkSession:
    """Return the session of `spark-submit`, or a local one."""
    if SUBMITTED in os.environ:
        return SparkSession.builder.getOrCreate()
    return spark_session("nyala job")


if __name__ == "__main__":
    known = os.environ.get(ENVIRONMENT, "")
    sys.exit(main(sys.argv[1:], "python -m nyala.spark.jobs", known, _session))
