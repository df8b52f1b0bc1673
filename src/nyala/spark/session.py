"""The session of a program, or a local one for nyala's own jobs: little logging, UTC, filters pushed down."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet

from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.sql import SparkSession

import nyala
from nyala.common.errors import InvalidArgument
from nyala.spark.source import NyalaSource

DAEMON = "nyala.spark.daemon"
PRESENT = "DATA_SOURCE_ALREADY_EXISTS"
"""Spark's error for a data source that its search has found."""
NO_JVM = "JAVA_GATEWAY_EXITED"
"""Spark's error if there is no Java, or its process has ended at once."""
TASK_TRIES = 4
"""Maximum number of tries of a task, as on a cluster; `local[n]` alone does not retry."""


SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Variable that `spark-submit` sets for its program."""


PY4J_LOGS = ("", "py4j.clientserver")
"""Loggers to which py4j writes the tracebacks of a call that an interrupt has ended."""


def _of_no_interrupt(record: logging.LogRecord) -> bool:
    """Filter of a log: no error that an interrupt has caused."""
    err = record.exc_info[1] if record.exc_info else None
    while err is not None and not isinstance(err, KeyboardInterrupt):
        err = err.__cause__ or err.__context__
    return err is None


@contextmanager
def _keeping_interrupts() -> Iterator[None]:
    """Keep the handler of interrupts while a session is made in the block, whose owner stops it.

    That of PySpark cancels all jobs, by a call to the JVM on a connection that may wait for the answer of
    another one, which fails with tracebacks. A session that is stopped cancels its jobs as well.
    """
    handler = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
    for name in PY4J_LOGS:
        logging.getLogger(name).addFilter(_of_no_interrupt)


def program_session(name: str) -> SparkSession:
    """Return the session of `spark-submit` or of the program if there is one, or a local one.

    Args:
        name: name of the application, of a local session.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return registered(active)
    if SUBMITTED not in os.environ:
        return spark_session(name)
    with _keeping_interrupts():
        return registered(SparkSession.builder.getOrCreate())


def spark_session(name: str, cores: int = 2) -> SparkSession:
    """Return a local Spark session with the data source `format("nyala")`.

    Spark shows the progress of its stages if standard error is a terminal.

    Args:
        name: name of the application.
        cores: number of tasks that run concurrently.

    Raises:
        InvalidArgument: Java does not start.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    source = str(Path(nyala.__file__).parents[1])
    paths = [source, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(p for p in paths if p))
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    builder = (
        SparkSession.builder.master(f"local[{cores},{TASK_TRIES}]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", str(on_terminal).lower())
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
    )
    try:
        with _keeping_interrupts():
            return registered(builder.getOrCreate())
    except PySparkRuntimeError as err:
        if err.getCondition() != NO_JVM:
            raise
        raise InvalidArgument(
            "Spark needs Java, which did not start: install Java 17 or newer (java -version shows which it "
            "is), or set JAVA_HOME to its folder; what Java itself has printed is above"
        ) from err


_known: "WeakSet[SparkSession]" = WeakSet()
"""Sessions in which this process has registered the data source; Spark warns of a second time."""


def registered(spark: SparkSession) -> SparkSession:
    """Return a session, in which the data source is registered if this process has not done it before.

    Spark looks for data sources of Python packages once, at the first use of a format, in a Python process
    that has 10 s to start. If that fails there are none, in no session, until the JVM ends. A session that
    `newSession()` makes has what the search has found, and not what was registered in another session.
    """
    if spark not in _known:
        try:
            with _active(spark):
                spark.dataSource.register(NyalaSource)
        except AnalysisException as err:
            if err.getCondition() != PRESENT:  # else the search has found it
                raise
        _known.add(spark)
    return spark


@contextmanager
def _active(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread in the block, as Spark's own calls do.

    Spark refuses to register a data source that the active session has, in whichever session it is asked to.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:  # a session of Spark Connect, whose server does this
        yield
        return
    sessions = SparkSession._get_j_spark_session_class(jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
