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
import ast
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "mutants"
VERDICTS = FOLDER / "verdicts.json"
TIMEOUT_S = 60
"""Seconds for a mutant's tests; if the unchanged tree needs more than half of it, ten times its time."""
BATCH = 20
"""Mutants after which the tests that killed them are run in the unchanged tree, all in one."""
COMPILE_S = 300
"""Seconds for numba's compilation, which takes 20 s on an idle core."""
JUDGE_TIMEOUT_S = 900
ROOM_TIMEOUT_S = 1800
MOST_COPIES = 16
LATE = re.compile(r"not within [\d.]+ s:|timeout|timed.out|deadline", re.IGNORECASE)
"""Words in test failures that a loaded machine may cause."""

Mutant = dict[str, Any]
Outcome = dict[str, Any]
"""Answer of forked_tests.py: `exit` (None: over the limit), `failed`, `passed` and the time used."""


def load(suites: list[str]) -> list[tuple[str, Mutant]]:
    """Return (suite, mutant) of the named suites in their order, or of all."""
    known = [f.stem for f in sorted(FOLDER.glob("*.toml"))]
    unknown = [r for r in suites if r not in known]
    if unknown:
        sys.exit(f"no mutants for {unknown}; there are: {known}")
    return [
        (suite, mutant)
        for suite in suites or known
        for mutant in tomllib.loads((FOLDER / f"{suite}.toml").read_text())["mutant"]
    ]


def apply(text: str, mutant: Mutant) -> str:
    """Return a file's text with the mistake in it. Raises ValueError if `find` is not found once."""
    changed = text
    for find, replace in _edits(mutant):
        if text.count(find) != 1:
            raise ValueError(f"`{find[:40]}` occurs {text.count(find)} times in {mutant['file']}")
        changed = changed.replace(find, replace)
    try:
        compile(changed, mutant["file"], "exec", dont_inherit=True)
    except SyntaxError as err:
        raise ValueError(f"{mutant['file']} does not compile any more: {err}") from None
    return changed


class Verdicts:
    """The recorded verdicts, one for each mutant, written to a file after each change."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._root = root
        self._known = self._read()

    def of(self, suite: str, mutant: Mutant) -> str | None:
        """Return the verdict on this mutant of this file and these tests, or None where they have changed."""
        text = self._known.get(self._key(suite, mutant), "")
        hashes, _, verdict = text.partition(" ")
        return verdict if hashes == self._hashes(mutant) else None

    def record(self, suite: str, mutant: Mutant, verdict: str, tree: Path | None = None) -> None:
        """Write a verdict down, for the files of the tree in which it was found."""
        hashes = self._hashes(mutant, tree)
        self._known = self._read() | {self._key(suite, mutant): f"{hashes} {verdict}"}
        self._write()

    def keep_only(self, mutants: list[tuple[str, Mutant]]) -> None:
        """Remove the verdicts on mutants that do not exist any more."""
        keys = {self._key(suite, mutant) for suite, mutant in mutants}
        self._known = {k: v for k, v in self._known.items() if k in keys}
        self._write()

    def _read(self) -> dict[str, str]:
        known: dict[str, str] = json.loads(self._path.read_text()) if self._path.exists() else {}
        return known

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._known, indent=0, sort_keys=True) + "\n")
        new.replace(self._path)

    @staticmethod
    def _key(suite: str, mutant: Mutant) -> str:
        edit = [mutant["file"], mutant["find"], mutant["replace"], mutant.get("killed_by", "")]
        return f"{suite}-{_digest(json.dumps(edit))}"

    def _hashes(self, mutant: Mutant, tree: Path | None = None) -> str:
        root = tree or self._root
        file = (root / mutant["file"]).read_text()
        try:
            changed = _code(apply(file, mutant))
        except ValueError:
            changed = ""
        tests = "".join(_code(p.read_text()) for p in _test_files(root, mutant))
        return f"{_digest(_code(file) + changed)}-{_digest(tests)}"


@cache
def _code(text: str) -> str:
    """Return the code of a module without docstrings and comments, in one format; its text if it is none."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [s for s in node.body if not _is_docstring(s)]
    return ast.unparse(tree) + "\n"


def _is_docstring(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _test_files(root: Path, mutant: Mutant) -> list[Path]:
    """Return the files of the tests that must kill a mutant."""
    if "killed_by" not in mutant:
        return sorted((root / "tests" / "judge").glob("*.py"))
    paths = [root / name.partition("::")[0] for name in test_names(mutant)]
    return [f for p in paths for f in (sorted(p.rglob("*.py")) if p.is_dir() else [p])]


class Tree:
    """A copy of the tree in which mutants are tried, kept for the next time, with a process that forks runs.

    The modification time of a changed file is derived from its text, so that compiled code of another
    text is never used, however fast one mutant follows the other.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        """Update the copy and start its process.

        Args:
            folder: folder of the copy and of its compiled code.
            root: tree to copy.
        """
        self.root = folder / "tree"
        self._scratch = folder
        self._kernels = folder / "kernels"
        if any(b"njit" in changed.read_bytes() for changed in _update(root, self.root)):
            shutil.rmtree(self._kernels, ignore_errors=True)
        self._kernels.mkdir(exist_ok=True)
        environ = {
            **os.environ,
            "PYTHONPATH": str(self.root / "src"),
            "HYPOTHESIS_PROFILE": "mutants",
        }
        environ |= {"NUMBA_CACHE_DIR": str(self._kernels), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        self.interrupted = False
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("forked_tests.py")], cwd=self.root, env=environ,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            start_new_session=True,  # Ctrl-C does not reach it: `interrupt` ends the tests that it runs
        )  # fmt: skip

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def interrupt(self) -> None:
        """End the tests that are running, from another thread; their outcome is no verdict."""
        self.interrupted = True
        assert self._process.stdin
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def run(self, mutant: Mutant, limit_s: float, kernels: Path | None = None) -> Outcome:
        """Run the tests of a mutant, or the judge if it names none, in the tree as it is now."""
        asked: dict[str, Any] = {"scratch": str(self._scratch), "limit_s": limit_s}
        asked["kernels"] = str(kernels or self._kernels)
        if "killed_by" in mutant:
            asked["arguments"] = _arguments(mutant)
        else:
            asked["module"] = "tests.judge.run"
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        outcome: Outcome = json.loads(self._process.stdout.readline())
        return outcome

    def run_changed(self, mutant: Mutant, limit_s: float) -> Outcome:
        """Apply a mutant, run its tests, undo it. Raises ValueError when it does not apply."""
        path = self.root / mutant["file"]
        text, times = path.read_text(), path.stat()
        changed = apply(text, mutant)
        path.write_text(changed)
        of_text = int(_digest(changed)[:7], 16)
        os.utime(path, (of_text, of_text))
        try:
            if "njit" not in text:
                return self.run(mutant, limit_s)
            with tempfile.TemporaryDirectory(prefix="kernels-", dir=self._scratch) as folder:
                kernels = Path(folder, "kernels")
                _copy_kernels(self._kernels, kernels, _importers(self.root, path))
                outcome = self.run(mutant, limit_s, kernels)
                if outcome["exit"] == 0:  # compiled code of an earlier run may have hidden it
                    shutil.rmtree(kernels)
                    outcome = self.run(mutant, limit_s, kernels)
                return outcome
        finally:
            path.write_text(text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _importers(root: Path, kernel: Path) -> set[Path]:
    """Return the files of kernels into which those of one file are inlined, and that file."""
    texts = {p: p.read_text() for p in sorted((root / "src").rglob("*.py"))}
    texts = {p: text for p, text in texts.items() if "njit" in text}
    found, new = {kernel}, {kernel}
    while new:
        names = [".".join(p.relative_to(root / "src").with_suffix("").parts) for p in sorted(new)]
        new = {p for p, text in texts.items() if any(n in text for n in names)} - found
        found |= new
    return found


def _copy_kernels(kept: Path, to: Path, stale: set[Path]) -> None:
    """Copy numba's cache without some files' kernels: numba itself only checks the file of a kernel."""
    heads = {(p.parent.name, p.stem) for p in stale}

    def is_stale(folder: str, names: list[str]) -> list[str]:
        parent = Path(folder).name.rpartition("_")[0]
        return [n for n in names if (parent, n.partition(".")[0]) in heads]

    shutil.copytree(kept, to, ignore=is_stale)


def _update(root: Path, copy: Path) -> list[Path]:
    """Make a copy equal to a tree except for compiled files; return the files that differed."""
    changed = []
    left_out = {".venv", ".git", "__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis"}
    wanted = set()
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f not in left_out]
        to = copy / Path(folder).relative_to(root)
        to.mkdir(parents=True, exist_ok=True)
        for name in files:
            new, old = Path(folder, name), to / name
            wanted.add(old)
            if not _same(new, old):
                shutil.copy2(new, old)
                changed.append(old)
    for folder, _, files in os.walk(copy):
        for old in (Path(folder, name) for name in files):
            if old not in wanted and old.parent.name != "__pycache__":
                old.unlink()
    return changed


def _same(new: Path, old: Path) -> bool:
    if not new.exists() or not old.exists():
        return not new.exists()  # a dangling link is not copied
    one, other = new.stat(), old.stat()
    return (one.st_mtime_ns, one.st_size) == (other.st_mtime_ns, other.st_size)


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


def _edits(mutant: Mutant) -> list[tuple[str, str]]:
    find, replace = mutant["find"], mutant["replace"]
    return [(find, replace)] if isinstance(find, str) else list(zip(find, replace, strict=True))


def _arguments(mutant: Mutant) -> list[str]:
    tests = mutant.get("killed_by", "")
    return shlex.split(tests) if isinstance(tests, str) else list(tests)


def test_names(mutant: Mutant) -> list[str]:
    """Return the files, folders and tests of pytest that must kill a mutant; empty if the judge must."""
    return [a for a in _arguments(mutant) if a.startswith("tests/")]


@contextmanager
def _tree(root: Path) -> Iterator[Tree]:
    """Yield a copy of the tree in .venv/mutants that no other run uses."""
    kept = Path(sys.prefix, "mutants", _digest(str(root)))
    kept.mkdir(parents=True, exist_ok=True)
    for number in range(MOST_COPIES):
        with (kept / f"lock-{number}").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            tree = Tree(kept / str(number), root)
            try:
                yield tree
            finally:
                tree.close()
            return
    sys.exit(f"{MOST_COPIES} runs use the copies in {kept}; wait until one has ended")


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
        with _tree(ROOT) as tree:
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
                print(f"{count} {suite:<8} {times}  {_name(mutant)}: {result}", flush=True)
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


def _name(mutant: Mutant) -> str:
    return " ".join(str(mutant.get("why", str(mutant["replace"])[:50])).split())


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
            print(f"{suite:<10} {word:<12} {mutant['file']}: {_name(mutant)}")
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
