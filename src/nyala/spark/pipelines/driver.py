"""Driver of a pipeline: it waits until it leads, and runs the steps that the ledger does not have."""

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nyala.client.journal.journal import Journal
from nyala.common.errors import InvalidArgument, NotLeading, OutcomeUnknown, Unavailable
from nyala.recipes import Leader, Operations
from nyala.spark.pipelines.ledger import Ledger, RunState, checked_result, read_state

LOGS = "pipeline/"
"""Beginning of the names of logs of pipelines; the name of the pipeline follows."""
TIMEOUT_MS = 3_000
LOOK_S = 1.0
PATIENCE = 4
"""Times `timeout_ms` after which a driver that does not stand by gives up; one that was killed has lost its
leadership before."""
NAME = re.compile(r"[A-Za-z0-9_.:+-]{1,56}")


@dataclass(frozen=True, slots=True)
class Turn:
    """The execution of one step by this driver.

    Attributes:
        run: id of the run.
        keys: part of the keys of the writes of the run.
        step: name of the step.
        results: of the steps before it.
        check: raises NotLeading unless this driver is still the active one.
    """

    run: str
    keys: str
    step: str
    results: dict[str, Any]
    check: Callable[[], object]


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """A run that has ended.

    Attributes:
        id: of the run.
        results: of all steps, by name.
        own_steps: names of the steps that this driver has run; other drivers have run the others.
    """

    id: str
    results: dict[str, Any]
    own_steps: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """Settings of a driver.

    Attributes:
        pipeline: name of the pipeline.
        holder: name of this process.
        timeout_ms: time after which a driver that does not answer is replaced.
        standby: wait for as long as another driver is active.
        run: id of the run; empty: the one under way, or a new one.
        anew: begin a new run, whatever was done of the one under way.
    """

    pipeline: str
    holder: str
    timeout_ms: int = TIMEOUT_MS
    standby: bool = False
    run: str = ""
    anew: bool = False


class Driver:
    """One process that runs a pipeline once.

    Args:
        journal: journal of the ledger.
        settings: of the driver.
        steps: names of the steps, in order.
        perform: runs one step, and returns its result.
        report: called with lines about the progress.
        on_lost: called with a reason when another driver may be active; it interrupts the work of a step.

    Raises:
        InvalidArgument: a name that is not valid, or a step twice.
    """

    def __init__(
        self,
        journal: Journal,
        settings: DriverSettings,
        steps: Sequence[str],
        perform: Callable[[Turn], Any],
        report: Callable[[str], object],
        on_lost: Callable[[str], object] | None = None,
    ) -> None:
        check_names(settings.pipeline, steps, settings.run)
        self._journal = journal
        self._settings = settings
        self._steps = tuple(steps)
        self._perform = perform
        self._report = report
        self._on_lost = on_lost
        self._log = LOGS + settings.pipeline
        self._anew = settings.anew

    def run(self) -> PipelineRun:
        """Run the steps that are left, or wait until another driver has.

        Raises:
            Unavailable: another driver is active, and this one does not stand by.
            NotLeading: another driver has taken over, and this one does not stand by.
            InvalidArgument: another run is under way, or it has other steps.
            BaseException: what a step has raised; a stand-by driver tries that step again.
        """
        before = read_state(self._journal, self._log)
        with Leader(
            self._journal, self._log, holder=self._settings.holder,
            timeout_ms=self._settings.timeout_ms, on_lost=self._on_lost,
        ) as leader:  # fmt: skip
            ledger = Ledger()
            operations = Operations(leader, ledger.operations, retract=ledger.retract)
            try:
                while True:
                    self._lead(leader)
                    try:
                        return self._continue(leader, operations, ledger, before)
                    except (NotLeading, OutcomeUnknown) as err:
                        if not self._settings.standby:
                            raise
                        self._report(f"another driver may be active ({err.message}); waits")
            finally:
                operations.close()

    def _lead(self, leader: Leader) -> None:
        if leader.wait(LOOK_S, looks=True):
            return
        active = Leader.current(self._journal, self._log)
        holder = active.holder if active else "no driver"
        self._report(f"{holder} is active; waits")
        if self._settings.standby:
            leader.wait()
        elif not leader.wait(PATIENCE * self._settings.timeout_ms / 1000):
            raise Unavailable(
                f"pipeline {self._settings.pipeline!r} is run by {holder}; wait until it has ended, or start "
                "this driver with standby (--standby), which waits and takes over if that driver ends early"
            )

    def _continue(
        self, leader: Leader, operations: Operations, ledger: Ledger, before: RunState | None
    ) -> PipelineRun:
        """Run the steps that are left, as the active driver.

        Args:
            leader: leadership of the log.
            operations: of the log.
            ledger: their state.
            before: last run when this driver was started.
        """
        epoch = operations.take_over()
        state = ledger.state
        if state is not None and self._is_over(state, before):
            return PipelineRun(state.id, state.done)
        state = self._begun(operations, state)
        results, own = dict(state.done), []
        for step in self._steps:
            if step in state.done:
                self._report(f"step {step}: done before")
                continue
            leader.check(epoch)
            began = time.monotonic()
            result = self._performed(leader, epoch, Turn(state.id, state.keys, step, dict(results),
                                                         lambda: leader.check(epoch)))  # fmt: skip
            request = {"run": state.id, "step": step, "result": checked_result(step, result)}
            operations.execute("step", request)
            results[step] = request["result"]
            own.append(step)
            self._report(f"step {step}: done in {time.monotonic() - began:.1f} s")
        operations.execute("end", _record(state, ended=True))
        return PipelineRun(state.id, results, own)

    def _performed(self, leader: Leader, epoch: int, turn: Turn) -> Any:
        self._report(f"step {turn.step}: begins")
        try:
            return self._perform(turn)
        except NotLeading:
            raise
        except Exception as err:
            if leader.epoch != epoch:  # its work was interrupted, or refused
                raise NotLeading(
                    f"another driver of pipeline {self._settings.pipeline!r} may be active; step "
                    f"{turn.step!r} has ended here with {type(err).__name__}"
                ) from err
            raise

    def _is_over(self, state: RunState, before: RunState | None) -> bool:
        """Return whether the run that this driver was started for has ended."""
        if not state.ended or self._anew:
            return False
        if self._settings.run:
            return state.id == self._settings.run
        return before is None or before.id != state.id or not before.ended

    def _begun(self, operations: Operations, state: RunState | None) -> RunState:
        """Return the run that is under way, or begin one."""
        wanted = self._settings.run
        if state is None or state.ended or self._anew:
            name = wanted or _random()
            keys = f"{name}~{_random()}" if self._anew else name
            self._anew = False
            state = RunState(name, keys, self._steps, False, {})
            operations.execute("begin", _record(state, ended=False))
            return state
        if wanted and state.id != wanted:
            raise InvalidArgument(
                f"run {state.id!r} of pipeline {self._settings.pipeline!r} is under way; finish it with "
                f"run={state.id!r}, or give it up with anew (--anew)"
            )
        if state.steps != self._steps:
            raise InvalidArgument(
                f"run {state.id!r} of pipeline {self._settings.pipeline!r} was begun with the steps "
                f"{', '.join(state.steps)}, and this program has {', '.join(self._steps)}; finish it with "
                "the program that began it, or give it up with anew (--anew)"
            )
        return state


def _record(state: RunState, *, ended: bool) -> dict[str, Any]:
    return {"id": state.id, "keys": state.keys, "steps": state.steps, "ended": ended}


def _random() -> str:
    return os.urandom(6).hex()


def check_names(pipeline: str, steps: Sequence[str], run: str) -> None:
    """Raise InvalidArgument for a name that is not valid, for no step, and for a step twice.

    Args:
        pipeline: name of the pipeline.
        steps: names of its steps.
        run: id of the run; empty: none is given.
    """
    for what, name in (("pipeline", pipeline), *(("step", s) for s in steps), ("run", run or "r")):
        if not NAME.fullmatch(name):
            raise InvalidArgument(
                f"{what} {name!r}: a name has 1 to 56 letters, digits and characters of _.:+-; give another"
            )
        if steps and steps.count(name) > 1 and what == "step":
            raise InvalidArgument(f"pipeline {pipeline!r} has two steps {name!r}; rename one")
    if not steps:
        raise InvalidArgument(
            f"pipeline {pipeline!r} has no steps; decorate a function with @pipeline.step"
        )
