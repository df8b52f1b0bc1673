"""The session of a program, or a local one for nyala's own jobs: little logging, UTC, filters pushed down."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import nyala

DAEMON = "nyala.spark.daemon"
TASK_TRIES = 4
"""Maximum number of tries of a task, as on a cluster; `local[n]` alone does not retry."""


SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Variable that `spark-submit` sets for its program."""


def program_session(name: str) -> SparkSession:
    """Return the session of `spark-submit` or of the program if there is one, or a local one.

    Args:
        name: name of the application, of a local session.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    return SparkSession.builder.getOrCreate() if SUBMITTED in os.environ else spark_session(name)


def spark_session(name: str, cores: int = 2) -> SparkSession:
    """Return a local Spark session with the data source `format("nyala")`.

    Args:
        name: name of the application.
        cores: number of tasks that run concurrently.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    source = str(Path(nyala.__file__).parents[1])
    paths = [source, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(p for p in paths if p))
    return (
        SparkSession.builder.master(f"local[{cores},{TASK_TRIES}]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", str(2 * cores))
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "40000")
        .config("spark.python.daemon.module", DAEMON)
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
