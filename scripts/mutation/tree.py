"""Copies of the tree in which mutants are tried, each with a process that forks runs of tests."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.mutation.edits import Mutant, apply, arguments_of
from scripts.mutation.verdicts import digest

COMPILE_S = 300
"""Seconds for numba's compilation, which takes 20 s on an idle core."""
MOST_COPIES = 16
Outcome = dict[str, Any]
"""Answer of forked_tests.py: `exit` (None: over the limit), `failed`, `passed` and the time used."""


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
            asked["arguments"] = arguments_of(mutant)
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
        of_text = int(digest(changed)[:7], 16)
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


@contextmanager
def own_copy(root: Path) -> Iterator[Tree]:
    """Yield a copy of the tree in .venv/mutants that no other run uses."""
    kept = Path(sys.prefix, "mutants", digest(str(root)))
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
