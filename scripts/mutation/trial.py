"""Trials of mutants in one tree: which test has killed a mutant, or why there is no verdict."""

import re
from typing import NamedTuple

from scripts.mutation.edits import Mutant
from scripts.mutation.tree import COMPILE_S, Outcome, Tree

TIMEOUT_S = 60
"""Seconds for a mutant's tests; if the unchanged tree needs more than half of it, ten times its time."""
JUDGE_TIMEOUT_S = 900
ROOM_TIMEOUT_S = 1800
LATE = re.compile(r"not within [\d.]+ s:|timeout|timed.out|deadline", re.IGNORECASE)
"""Words in test failures that a loaded machine may cause."""


class Found(NamedTuple):
    """Result of a mutant's tests: 'killed ...', the problem, or empty without a verdict."""

    verdict: str
    killer: str = ""
    """The failed test, which must pass in the unchanged tree."""


class Trial:
    """The mutants of one tree."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.cpu_s = 0.0

    def unchanged(self, mutant: Mutant) -> tuple[str, float]:
        """Run its tests in the unchanged tree; return the problem, if any, and the time they took."""
        outcome = self._counted(self.tree.run(mutant, ROOM_TIMEOUT_S))
        good = outcome["exit"] == 0 and not outcome.get("foreign")
        return "" if good else _told(outcome), outcome["seconds"]

    def passing(self, tests: list[str]) -> set[str]:
        """Return those of some tests that pass in the unchanged tree."""
        wanted = {"killed_by": ["--maxfail=0", *tests]}
        outcome = self._counted(self.tree.run(wanted, ROOM_TIMEOUT_S))
        failed = {test for test, _ in outcome.get("failed", [])}
        return set() if outcome.get("foreign") else set(outcome.get("passed", [])) - failed

    def verdict(self, mutant: Mutant) -> Found:
        """Return the result of a mutant's tests; its killer must pass in the unchanged tree, too.

        After a failure by time-out the unchanged tree has to pass right afterwards, in half of the
        limit, since a loaded machine must not kill mutants.
        """
        limit_s: float = TIMEOUT_S if "killed_by" in mutant else JUDGE_TIMEOUT_S
        if "njit" in (self.tree.root / mutant["file"]).read_text():
            limit_s += COMPILE_S
        for _ in range(2):
            try:
                outcome = self._counted(self.tree.run_changed(mutant, limit_s))
            except ValueError as err:
                return Found(f"STALE: {err}")
            if self.tree.interrupted:
                return Found("")
            if "killed_by" not in mutant:
                return Found(_read_judge(outcome))
            found = _read(outcome)
            if not _is_late(outcome):
                return found
            wrong, seconds = self.unchanged(mutant)
            if wrong:
                break
            if outcome["exit"] is not None or seconds < limit_s / 2:
                return found
            limit_s = 10 * seconds
        return Found("")

    def _counted(self, outcome: Outcome) -> Outcome:
        self.cpu_s += outcome["cpu_s"]
        return outcome


def _read_judge(outcome: Outcome) -> str:
    """Return the verdict of a run of the judge."""
    if outcome["exit"] is None:
        return f"FAILED: no verdict in {JUDGE_TIMEOUT_S} s"
    word = {0: "SURVIVED", 2: "TOO COARSE", 3: "killed"}.get(outcome["exit"], "FAILED")
    return f"{word} by {outcome['output']}"


def _read(outcome: Outcome) -> Found:
    """Return the result of a run of named tests."""
    if outcome.get("foreign"):
        return Found(f"FAILED: {outcome['foreign']}")
    if outcome["exit"] is None:
        return Found(f"killed by the time limit after {outcome['seconds']:.0f} s")
    if outcome["exit"] == 0 and outcome.get("passed"):
        return Found("SURVIVED")
    if outcome["exit"] == 1 and outcome.get("failed"):
        test, why = outcome["failed"][0]
        return Found(f"killed by {test}: {' '.join(why.split())[:100]}", test)
    return Found(f"pytest exit {outcome['exit']}: {_told(outcome)}")


def _told(outcome: Outcome) -> str:
    messages = [" ".join(t) for t in outcome.get("failed", []) + outcome.get("not collected", [])]
    return str(messages[0] if messages else outcome.get("foreign") or outcome["output"])[-300:]


def _is_late(outcome: Outcome) -> bool:
    if outcome["exit"] is None:
        return True
    return any(LATE.search(why) for _, why in outcome.get("failed", []))
