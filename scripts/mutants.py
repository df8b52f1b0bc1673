"""Runs the mutants: deliberate mistakes, each of which a test must notice.

A mutant of tests/mutants/<room>.toml is an edit of one product file (`find` -> `replace`; lists of them:
several edits) and the tests that must fail because of it (`killed_by`, pytest arguments). Without
`killed_by` the whole judge has to find it (tests/judge/run.py), and it must be good on good days. First of
all these tests and the judge have to pass in the unchanged tree. A mutant that survives, that is too coarse,
or whose `find` no longer occurs exactly once, fails the run: a test that cannot fail is a defect.

Each verdict is recorded at once in tests/mutants/verdicts.json with hashes of the mutated file and of its
tests, so that an interrupted run continues where it ended, and a later run skips what has not changed.
"""

import argparse
import ast
import hashlib
import json
import os
import queue
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "mutants"
VERDICTS = FOLDER / "verdicts.json"
TIMEOUT_S = 300
CACHE = "numba-cache"
JUDGE_TIMEOUT_S = 900
ROOM_TIMEOUT_S = 1800
PYTEST = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]

Mutant = dict[str, Any]


def load(rooms: list[str]) -> list[tuple[str, Mutant]]:
    """Return (room, mutant) of the named rooms, or of all."""
    files = sorted(FOLDER.glob("*.toml"))
    known = [f.stem for f in files]
    unknown = [r for r in rooms if r not in known]
    if unknown:
        sys.exit(f"no mutants for {unknown}; there are: {known}")
    return [
        (file.stem, mutant)
        for file in files
        if not rooms or file.stem in rooms
        for mutant in tomllib.loads(file.read_text())["mutant"]
    ]


def apply(text: str, mutant: Mutant) -> str:
    """Return a file's text with the mistake in it. Raises ValueError when its lines have moved."""
    changed = text
    for find, replace in _edits(mutant):
        if text.count(find) != 1:
            raise ValueError(f"`{find[:40]}` occurs {text.count(find)} times in {mutant['file']}")
        changed = changed.replace(find, replace)
    try:
        ast.parse(changed)
    except SyntaxError as err:
        raise ValueError(f"{mutant['file']} does not parse any more: {err}") from None
    return changed


class Verdicts:
    """The recorded verdicts, one for each mutant, written to a file after each change."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path = path
        self._root = root
        self._known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}

    def of(self, room: str, mutant: Mutant) -> str | None:
        """Return the verdict on this mutant of this file and these tests, or None where they have changed."""
        text = self._known.get(self._key(room, mutant), "")
        hashes, _, verdict = text.partition(" ")
        return verdict if hashes == self._hashes(mutant) else None

    def record(self, room: str, mutant: Mutant, verdict: str) -> None:
        """Write a verdict down."""
        self._known[self._key(room, mutant)] = f"{self._hashes(mutant)} {verdict}"
        self._write()

    def keep_only(self, mutants: list[tuple[str, Mutant]]) -> None:
        """Forget the verdicts on mutants that are not in the list of all mutants."""
        keys = {self._key(room, mutant) for room, mutant in mutants}
        self._known = {k: v for k, v in self._known.items() if k in keys}
        self._write()

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._known, indent=0, sort_keys=True) + "\n")
        new.replace(self._path)

    @staticmethod
    def _key(room: str, mutant: Mutant) -> str:
        edit = [mutant["file"], mutant["find"], mutant["replace"], mutant.get("killed_by", "")]
        return f"{room}-{_digest(json.dumps(edit))}"

    def _hashes(self, mutant: Mutant) -> str:
        file = (self._root / mutant["file"]).read_text()
        tests = "".join(p.read_text() for p in _test_files(self._root, mutant))
        return f"{_digest(file)}-{_digest(tests)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _test_files(root: Path, mutant: Mutant) -> list[Path]:
    """Return the files of the tests that must kill a mutant."""
    if "killed_by" not in mutant:
        return sorted((root / "tests" / "judge").glob("*.py"))
    paths = [root / name.partition("::")[0] for name in _test_names(mutant)]
    return [f for p in paths for f in (sorted(p.rglob("*.py")) if p.is_dir() else [p])]


def judge(copy: Path, mutant: Mutant) -> str:
    """Apply one mutant in the copy, run its tests there, undo it; return 'killed' or what is wrong."""
    path = copy / mutant["file"]
    text = path.read_text()
    try:
        changed = apply(text, mutant)
    except ValueError as err:
        return f"STALE: {err}"
    path.write_text(changed)
    if "njit" in text:  # numba looks at the file of a kernel, not at those that are inlined into it
        shutil.rmtree(copy / CACHE, ignore_errors=True)
    try:
        done = _run(copy, mutant)
    except subprocess.TimeoutExpired:
        # a test has noticed it then; the judge should have done so by itself
        late = f"no verdict in {JUDGE_TIMEOUT_S} s"
        return "killed by the time limit" if "killed_by" in mutant else f"FAILED: {late}"
    finally:
        path.write_text(text)
        if "njit" in text:
            shutil.rmtree(copy / CACHE, ignore_errors=True)
    if "killed_by" not in mutant:
        word = {0: "SURVIVED", 2: "TOO COARSE", 3: "killed"}.get(done.returncode, "FAILED")
        return f"{word} by {_tail(done)}"
    return {0: "SURVIVED", 1: "killed"}.get(
        done.returncode, f"pytest exit {done.returncode}: {_tail(done)}"
    )


def _tail(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stdout or done.stderr).strip()[-300:]


def _run(copy: Path, mutant: Mutant) -> subprocess.CompletedProcess[str]:
    if "killed_by" not in mutant:
        return _execute(copy, ["-m", "tests.judge.run"], JUDGE_TIMEOUT_S)
    return _execute(copy, [*PYTEST, *_arguments(mutant)], TIMEOUT_S)


def _execute(copy: Path, command: list[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(copy / "src"), "HYPOTHESIS_PROFILE": "ci"}
    environ["NUMBA_CACHE_DIR"] = str(copy / CACHE)
    return subprocess.run(
        [sys.executable, *command], cwd=copy, env=environ, capture_output=True, text=True, check=False,
        timeout=limit_s,
    )  # fmt: skip


def unsound(copy: Path, todo: list[tuple[str, Mutant]]) -> list[str]:
    """Return the rooms whose tests or judge fail in the unchanged tree, with the end of their output."""
    found = []
    for room in dict.fromkeys(r for r, _ in todo):
        mutants = [m for r, m in todo if r == room]
        tests = sorted({t for m in mutants if "killed_by" in m for t in _test_names(m)})
        runs = [_execute(copy, [*PYTEST, *tests], ROOM_TIMEOUT_S)] if tests else []
        if any("killed_by" not in m for m in mutants):
            runs.append(_run(copy, {}))
        found += [f"{room}: {_tail(r)}" for r in runs if r.returncode != 0]
    return found


def _edits(mutant: Mutant) -> list[tuple[str, str]]:
    find, replace = mutant["find"], mutant["replace"]
    return [(find, replace)] if isinstance(find, str) else list(zip(find, replace, strict=True))


def _arguments(mutant: Mutant) -> list[str]:
    tests = mutant["killed_by"]
    return shlex.split(tests) if isinstance(tests, str) else list(tests)


def _test_names(mutant: Mutant) -> list[str]:
    return [a for a in _arguments(mutant) if a.startswith("tests/")]


@contextmanager
def _copies(count: int) -> Iterator["queue.SimpleQueue[Path]"]:
    """Copies of the tree, one for each worker."""
    free: queue.SimpleQueue[Path] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="nyala-mutants-") as folder:
        for number in range(count):
            copy = Path(folder) / f"tree-{number}"
            left_out = shutil.ignore_patterns(".venv", ".git", "__pycache__", ".mypy_cache")
            shutil.copytree(ROOT, copy, ignore=left_out)
            free.put(copy)
        yield free


def _in_a_copy(
    free: "queue.SimpleQueue[Path]", mutant: Mutant, deadline: float
) -> tuple[str | None, float]:
    """Return the verdict on a mutant and the seconds it took; no verdict after the deadline."""
    started = time.monotonic()
    if started > deadline:
        return None, 0.0
    copy = free.get()
    try:
        return judge(copy, mutant), time.monotonic() - started
    finally:
        free.put(copy)


def _name(mutant: Mutant) -> str:
    return str(mutant.get("why", str(mutant["replace"]).strip()[:50]))


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(prog="./run mutants", description=__doc__)
    parser.add_argument("rooms", nargs="*", help="names of tests/mutants/<room>.toml; all without")
    parser.add_argument("--only", default="", help="mutants whose reason contains these words")
    parser.add_argument("--list", action="store_true", help="print the mutants and their verdicts")
    parser.add_argument("--again", action="store_true", help="run those too that have a verdict")
    parser.add_argument("--workers", type=int, default=1, help="mutants run at one time")
    parser.add_argument("--verdicts", type=Path, default=VERDICTS, help="the file of verdicts")
    parser.add_argument("--minutes", type=float, default=600, help="begin none after this time")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the mutants that have no verdict yet; return 1 if any of those asked for is alive."""
    asked = parse(arguments)
    verdicts = Verdicts(asked.verdicts, ROOT)
    verdicts.keep_only(load([]))
    mutants = [(r, m) for r, m in load(asked.rooms) if asked.only in str(m.get("why", ""))]
    if asked.list:
        for room, mutant in mutants:
            word = verdicts.of(room, mutant) or "no verdict"
            print(f"{room:<10} {word:<12} {mutant['file']}: {_name(mutant)}")
        return 0
    todo = [(r, m) for r, m in mutants if asked.again or verdicts.of(r, m) != "killed"]
    alive = 0
    with _copies(asked.workers) as free, ThreadPoolExecutor(asked.workers) as pool:
        if todo and not asked.only:
            copy = free.get()
            for room in unsound(copy, todo):
                alive += 1
                print(f"FAILED in the unchanged tree: {room}", flush=True)
            free.put(copy)
        deadline = time.monotonic() + 60 * asked.minutes
        running = {pool.submit(_in_a_copy, free, m, deadline): (r, m) for r, m in todo}
        for number, future in enumerate(as_completed(running), 1):
            room, mutant = running[future]
            verdict, seconds = future.result()
            if verdict is None:
                continue
            word = "killed" if verdict.startswith("killed") else verdict
            verdicts.record(room, mutant, word)
            print(
                f"{number:>3}/{len(todo)} {room:<8} {seconds:>5.1f} s  {verdict}  {_name(mutant)}",
                flush=True,
            )
    return _closing_line(mutants, verdicts, alive)


def _closing_line(mutants: list[tuple[str, Mutant]], verdicts: Verdicts, alive: int) -> int:
    """Print how many mutants of each room have which verdict, and the sum; return the exit status."""
    rooms: dict[str, Counter[str]] = {}
    for room, mutant in mutants:
        known = verdicts.of(room, mutant)
        word = "killed" if known == "killed" else "failed" if known else "no verdict"
        rooms.setdefault(room, Counter())[word] += 1
    for room, words in rooms.items():
        print(f"{room:<10} " + ", ".join(f"{n} {w}" for w, n in sorted(words.items())))
    total = sum(rooms.values(), Counter())
    failures = alive + total["failed"]
    print(f"{len(mutants)} mutants, {failures} failures, {total['no verdict']} without a verdict")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
