"""The mutants of a run, shared by its workers."""

import threading
import time
from typing import Any

from scripts.mutation.edits import ROOT, Mutant
from scripts.mutation.tree import Tree, own_copy
from scripts.mutation.trial import Trial
from scripts.mutation.verdicts import Verdicts

BATCH = 20
"""Mutants after which the tests that killed them are run in the unchanged tree, all in one."""


class Work:
    """The mutants of a run, shared by its workers, and the results."""

    def __init__(self, todo: list[tuple[str, Mutant]], verdicts: Verdicts, asked: Any) -> None:
        self._todo = list(todo)
        self._count, self._done = len(todo), 0
        self._verdicts = verdicts
        self._judge_passes = bool(asked.only)
        self._deadline = time.monotonic() + 60 * asked.minutes
        self._lock, self._judging = threading.Lock(), threading.Lock()
        self._trees: list[Tree] = []
        self.unsound = 0

    def work(self) -> float:
        """Try mutants in a copy of the tree until none is left; return the CPU seconds used."""
        with own_copy(ROOT) as tree:
            self._trees.append(tree)
            trial = Trial(tree)
            while some := self._next():
                self._try(trial, some)
            return trial.cpu_s

    def stop(self) -> None:
        """Start no mutant more, and end the running ones; kills that were found are still verified."""
        self._deadline = 0.0
        for tree in list(self._trees):
            tree.interrupt()

    def _next(self) -> list[tuple[str, Mutant]]:
        with self._lock:
            late = time.monotonic() > self._deadline
            some, self._todo = ([], []) if late else (self._todo[:BATCH], self._todo[BATCH:])
            return some

    def _try(self, trial: Trial, some: list[tuple[str, Mutant]]) -> None:
        """Try some mutants, and then the tests that killed them in the unchanged tree."""
        killed: list[tuple[str, Mutant, str]] = []
        for suite, mutant in some:
            if time.monotonic() > self._deadline:
                break
            if "killed_by" not in mutant and not self._judged(trial):
                continue
            began, cpu_s = time.monotonic(), trial.cpu_s
            found = trial.verdict(mutant)
            times = f"{time.monotonic() - began:>5.1f} s {trial.cpu_s - cpu_s:>5.1f} s of CPU"
            result = found.verdict or "no verdict: the unchanged tree is as slow; run it again"
            with self._lock:
                self._done += 1
                count = f"{self._done:>3}/{self._count}"
                print(f"{count} {suite:<8} {times}  {name_of(mutant)}: {result}", flush=True)
            if found.killer:
                killed.append((suite, mutant, found.killer))
            elif found.verdict:
                self._record(trial, suite, mutant, found.verdict)
        killers = list(dict.fromkeys(killer for _, _, killer in killed))
        passing = trial.passing(killers) if killers else set()
        for suite, mutant, killer in killed:
            wrong = "" if killer in passing else trial.unchanged(mutant)[0]
            if wrong:
                self._report_unsound(f"{suite} {killer}: {wrong}")
            else:
                self._record(trial, suite, mutant, "killed")

    def _judged(self, trial: Trial) -> bool:
        """Return whether the judge passes in the unchanged tree; it is run once."""
        with self._judging:
            if not self._judge_passes and (wrong := trial.unchanged({})[0]):
                self._report_unsound(f"the judge: {wrong}")
                return False
            self._judge_passes = True
            return True

    def _report_unsound(self, text: str) -> None:
        with self._lock:
            self.unsound += 1
            print(f"FAILED in the unchanged tree: {text}", flush=True)

    def _record(self, trial: Trial, suite: str, mutant: Mutant, verdict: str) -> None:
        with self._lock:
            word = "killed" if verdict.startswith("killed") else verdict
            self._verdicts.record(suite, mutant, word, trial.tree.root)


def name_of(mutant: Mutant) -> str:
    """Return the reason of a mutant in one line."""
    return " ".join(str(mutant.get("why", str(mutant["replace"])[:50])).split())
