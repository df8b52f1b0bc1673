"""Runs the mutants: deliberate mistakes, each of which a test must detect.

A mutant of tests/mutants/<suite>.toml is an edit of one product file (`find` -> `replace`; lists of them:
several edits) and the tests that must fail because of it (`killed_by`, pytest arguments). Without
`killed_by` the judge has to detect it (tests/judge/run.py), and it must pass the judge's runs without faults.
The judge must pass in the unchanged tree before the run, and the failed tests right after it. A mutant that
survives, that is too coarse, or whose `find` does not occur exactly once, fails the run: a test that cannot
fail is a defect.

Each verdict is recorded in tests/mutants/verdicts.json with hashes of the code of the mutated file and of its
tests, so that an interrupted run continues where it ended, and a later run skips what has not changed.
Docstrings, comments and formatting do not count as code.
"""

import argparse
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from scripts.mutation.edits import FOLDER, ROOT, Mutant, load
from scripts.mutation.verdicts import Verdicts
from scripts.mutation.work import Work, name_of

VERDICTS = FOLDER / "verdicts.json"


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="./run mutants", description=__doc__)
    parser.add_argument(
        "suites", nargs="*", help="names of tests/mutants/<suite>.toml; all without"
    )
    parser.add_argument("--only", default="", help="mutants whose reason contains these words")
    parser.add_argument("--list", action="store_true", help="print the mutants and their verdicts")
    parser.add_argument("--again", action="store_true", help="run mutants with a verdict too")
    parser.add_argument("--workers", type=int, default=1, help="mutants run at one time")
    parser.add_argument("--verdicts", type=Path, default=VERDICTS, help="the file of verdicts")
    parser.add_argument("--minutes", type=float, default=600, help="start none after this time")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the mutants that have no verdict yet; return 1 if any selected one has survived."""
    asked = parse(arguments)
    verdicts = Verdicts(asked.verdicts, ROOT)
    verdicts.keep_only(load([]))
    mutants = [(r, m) for r, m in load(asked.suites) if asked.only in str(m.get("why", ""))]
    if asked.list:
        for suite, mutant in mutants:
            word = verdicts.of(suite, mutant) or "no verdict"
            print(f"{suite:<10} {word:<12} {mutant['file']}: {name_of(mutant)}")
        return 0
    todo = [(r, m) for r, m in mutants if asked.again or verdicts.of(r, m) != "killed"]
    work = Work(todo, verdicts, asked)
    if todo:
        with ThreadPoolExecutor(asked.workers) as pool:
            workers = [pool.submit(work.work) for _ in range(min(asked.workers, len(todo)))]
            try:
                wait(workers)
            except KeyboardInterrupt:
                print("interrupted: kills that were found are verified, then it ends", flush=True)
                work.stop()
        print(f"{sum(w.result() for w in workers):.0f} s of CPU")
    return _closing_line(mutants, verdicts, work.unsound)


def _closing_line(mutants: list[tuple[str, Mutant]], verdicts: Verdicts, alive: int) -> int:
    """Print how many mutants of each suite have which verdict, and the sum; return the exit status."""
    suites: dict[str, Counter[str]] = {}
    for suite, mutant in mutants:
        known = verdicts.of(suite, mutant)
        word = "killed" if known == "killed" else "failed" if known else "no verdict"
        suites.setdefault(suite, Counter())[word] += 1
    for suite, words in suites.items():
        print(f"{suite:<10} " + ", ".join(f"{n} {w}" for w, n in sorted(words.items())))
    total = sum(suites.values(), Counter())
    failures = alive + total["failed"]
    print(f"{len(mutants)} mutants, {failures} failures, {total['no verdict']} without a verdict")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
