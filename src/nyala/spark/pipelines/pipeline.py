"""Pipeline: named steps that one driver runs in order, while others stand by."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, overload

from pyspark.sql import SparkSession

from nyala.client.client import Client, connect
from nyala.client.journal.journal import Journal
from nyala.common.errors import AlreadyPresent
from nyala.spark.jobs.reports import Report, to_standard_error
from nyala.spark.options import masters_of
from nyala.spark.pipelines.driver import (
    TIMEOUT_MS,
    Driver,
    DriverSettings,
    PipelineRun,
    Turn,
    check_names,
)
from nyala.spark.pipelines.step_run import StepRun, Work
from nyala.spark.session import program_session, registered

JOURNAL = "pipelines"
"""Name of the journal with the ledgers."""


class Pipeline:
    """Steps of a job, and a ledger in the cluster of those that are done.

    A run is a sequence of all steps. A driver that is started while a run is under way continues it; a new
    run begins when the last one has ended.

    Args:
        name: name of the pipeline, the same in all drivers.
        masters: addresses of the masters; None: NYALA_MASTERS.
        journal: name of the journal of its ledger, which is created if there is none.
        timeout_ms: time after which a driver that does not answer may be replaced.

    Raises:
        InvalidArgument: a name that is not valid.
    """

    def __init__(
        self,
        name: str,
        *,
        masters: str | None = None,
        journal: str = JOURNAL,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        check_names(name, ["step"], "")
        self.name = name
        self._masters = masters
        self._journal = journal
        self._timeout_ms = timeout_ms
        self._steps: dict[str, Work] = {}

    @property
    def steps(self) -> list[str]:
        """Names of the steps, in order."""
        return list(self._steps)

    @overload
    def step(self, work: Work) -> Work: ...

    @overload
    def step(self, *, name: str) -> Callable[[Work], Work]: ...

    def step(self, work: Work | None = None, *, name: str = "") -> Any:
        """Add a step, as a decorator of its function: `@pipeline.step` or `@pipeline.step(name="load")`.

        Args:
            work: gets a `StepRun`; returns None, or what JSON can hold. Every driver runs it in the same way.
            name: name of the step; empty: that of the function.

        Raises:
            InvalidArgument: a name that is not valid, or that another step has.
        """

        def added(work: Work) -> Work:
            chosen = name or work.__name__
            check_names(self.name, [*self._steps, chosen], "")
            self._steps[chosen] = work
            return work

        return added if work is None else added(work)

    def call(self, name: str, step: StepRun) -> Any:
        """Run the function of a step; return its result.

        Args:
            name: of the step.
            step: what it gets.
        """
        return self._steps[name](step)

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        standby: bool = False,
        run: str = "",
        anew: bool = False,
        masters: str | None = None,
        report: Report = to_standard_error,
    ) -> PipelineRun:
        """Run the steps that are left of the run under way, or those of a new run.

        Args:
            spark: session; None: that of the program, or a local one, which is stopped at the end. It is made
                before this driver waits, so that it takes over quickly.
            standby: wait while another driver is active, and take over when it has ended early. Returns when
                the run has ended, whichever driver has run it.
            run: id of the run; one that has ended is not run again. Empty: the run under way, or a new one.
            anew: begin a new run, whatever was done of the one under way.
            masters: addresses of the masters; None: those of the pipeline.
            report: called with lines about the progress.

        Raises:
            Unavailable: another driver is active, and this one does not stand by.
            NotLeading: another driver has taken over, and this one does not stand by.
            InvalidArgument: another run is under way, or it has other steps.
            BaseException: what a step has raised. A stand-by driver runs that step again.
        """
        addresses = masters_of(masters or self._masters)
        check_names(self.name, self.steps, run)
        session = (
            program_session(f"nyala pipeline {self.name}") if spark is None else registered(spark)
        )
        try:
            with connect(addresses) as client:
                settings = DriverSettings(
                    self.name, f"{socket.gethostname()} process {os.getpid()}", self._timeout_ms,
                    standby, run, anew,
                )  # fmt: skip

                def perform(turn: Turn) -> Any:
                    step = StepRun(session, client, self.name, turn)
                    result = self.call(turn.step, step)
                    step.seal()
                    return result

                def interrupt(_: str) -> None:
                    with suppress(Exception):  # of a session that has ended
                        session.interruptAll()

                journal = opened_journal(client, self._journal)
                driver = Driver(journal, settings, self.steps, perform, report, interrupt)
                return driver.run()
        finally:
            if spark is None:
                session.stop()


def opened_journal(client: Client, name: str) -> Journal:
    """Open a journal, or create it with three replicas, or one where there are fewer servers."""
    if name not in client.journals():
        live = [s for s in client.servers() if s.role == "tserver" and s.alive]
        with suppress(AlreadyPresent):  # another driver has created it
            return client.create_journal(name, replicas=3 if len(live) >= 3 else 1)
    return client.journal(name)
