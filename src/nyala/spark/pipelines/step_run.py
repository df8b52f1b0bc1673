"""Argument of the function of a step: the session, and writes that take effect once, whoever makes them."""

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from nyala.client.client import Client
from nyala.common.errors import InvalidArgument
from nyala.spark.pipelines.driver import Turn
from nyala.spark.writes.staging import say


class StepRun:
    """The execution of one step. Its writes are made one after the other.

    The n-th write of a step has the same key for every driver. So a write that a driver has committed before
    it ended is not made again, and one that a replaced driver commits late has no effect if the active one
    has made it.

    Args:
        spark: session.
        client: of the cluster.
        pipeline: name of the pipeline.
        turn: of the driver.

    Attributes:
        spark: session.
        client: of the cluster.
        run: id of the run.
        step: name of the step.
        results: of the steps before it, by name.
    """

    def __init__(self, spark: SparkSession, client: Client, pipeline: str, turn: Turn) -> None:
        self.spark = spark
        self.client = client
        self.run = turn.run
        self.step = turn.step
        self.results = turn.results
        self._check = turn.check
        self._prefix = f"pipeline {pipeline} run {turn.keys} step {turn.step} write "
        self._writes = 0

    @property
    def masters(self) -> str:
        """Addresses of the masters."""
        return self.client.masters

    def check(self) -> None:
        """Return if this driver is the active one. Call it before effects outside of the cluster.

        Raises:
            NotLeading: another driver may be active.
        """
        self._check()

    def key(self) -> str:
        """Return the key of the next write: the `job_id` of a job, or the `key` of a transaction.

        Raises:
            NotLeading: another driver may be active.
        """
        self._check()
        self._writes += 1
        return f"{self._prefix}{self._writes}"

    def write(self, frame: DataFrame, table: str, *, mode: str = "append", **options: str) -> None:
        """Write a frame as a whole, once in this run.

        Args:
            frame: rows.
            table: name of the table.
            mode: append, or overwrite.
            **options: of the data source; not `job_id`, and not `atomic`.

        Raises:
            InvalidArgument: an option that the step sets.
            NotLeading: another driver may be active.
        """
        for name in ("job_id", "atomic"):
            if name in options:
                raise InvalidArgument(
                    f"option {name}: a step sets it, so that its writes take effect once; leave it out, or "
                    'write with frame.write.format("nyala")'
                )
        where = {"table": table, "masters": self.masters, "job_id": self.key()}
        frame.write.format("nyala").options(**where, **options).mode(mode).save()

    def seal(self) -> None:
        """Take the key of the write after the last one, so that a replaced driver makes no further write.

        Such a driver makes its writes one after the other too: of those that no other driver has made, only
        the next one can be under way.
        """
        number = self._writes
        while True:
            number += 1
            with self.client.transaction(key=f"{self._prefix}{number}") as txn:
                pass
            if not txn.committed_before:
                return
            say(f"step {self.step!r}: write {number} was made by an earlier driver only")


Work = Callable[[StepRun], Any]
"""The function of a step: gets a `StepRun`, returns None or what JSON can hold."""
