"""Deliberate mistakes must die: applies each mutant of tests/mutants/*.toml and runs its test.

Usage: mutants.py [ROOM ...] [--only WORDS] [--list]. A mutant is an edit of one product file (`find` ->
`replace`; lists of them: several edits) and the tests that must fail because of it (`killed_by`, pytest
arguments). Without `killed_by` the whole judge has to find it (tests/judge/run.py), and it must be good on
good days; first of all the judge has to find nothing in the tree as it is (not with --only). A mutant that
survives, that is too coarse, or whose `find` no longer occurs exactly once, fails the run: a test that cannot
fail is a defect.
"""

import ast
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 300
CACHE = "numba-cache"
JUDGE_TIMEOUT_S = 900


def load(rooms: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return (room, mutant) of the named rooms, or of all."""
    files = sorted((ROOT / "tests" / "mutants").glob("*.toml"))
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


def apply(text: str, mutant: dict[str, Any]) -> str:
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


def judge(copy: Path, mutant: dict[str, Any]) -> str:
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
        return f"{word} by {(done.stdout or done.stderr).strip()[-300:]}"
    return {0: "SURVIVED", 1: "killed"}.get(
        done.returncode, f"pytest exit {done.returncode}: " + done.stdout[-300:]
    )


def _run(copy: Path, mutant: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(copy / "src"), "HYPOTHESIS_PROFILE": "ci"}
    environ["NUMBA_CACHE_DIR"] = str(copy / CACHE)
    limit_s = TIMEOUT_S if "killed_by" in mutant else JUDGE_TIMEOUT_S
    return subprocess.run(
        _command(mutant), cwd=copy, env=environ, capture_output=True, text=True, check=False,
        timeout=limit_s,
    )  # fmt: skip


def _edits(mutant: dict[str, Any]) -> list[tuple[str, str]]:
    find, replace = mutant["find"], mutant["replace"]
    return [(find, replace)] if isinstance(find, str) else list(zip(find, replace, strict=True))


def _command(mutant: dict[str, Any]) -> list[str]:
    if "killed_by" not in mutant:
        return [sys.executable, "-m", "tests.judge.run"]
    tests = mutant["killed_by"]
    arguments = shlex.split(tests) if isinstance(tests, str) else list(tests)
    return [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]


def main(arguments: list[str]) -> int:
    """Run the mutants; return 1 if any is alive."""
    words = arguments[arguments.index("--only") + 1] if "--only" in arguments else ""
    rooms = [a for a in arguments if not a.startswith("--") and a != words]
    mutants = [(r, m) for r, m in load(rooms) if words in str(m.get("why", ""))]
    if "--list" in arguments:
        for room, mutant in mutants:
            print(
                f"{room:<10} {mutant['file']}: {mutant.get('why', str(mutant['replace']).strip()[:60])}"
            )
        return 0
    alive = 0
    with tempfile.TemporaryDirectory(prefix="nyala-mutants-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__"))
        if not words and any("killed_by" not in m for _, m in mutants):
            sound = _run(copy, {})
            print(f"the tree as it is: {sound.stdout.strip()[-300:]}", flush=True)
            alive += sound.returncode != 0
        for number, (room, mutant) in enumerate(mutants, 1):
            started = time.monotonic()
            verdict = judge(copy, mutant)
            alive += not verdict.startswith("killed")
            why = mutant.get("why", str(mutant["replace"]).strip()[:50])
            print(
                f"{number:>3}/{len(mutants)} {room:<8} {time.monotonic() - started:>5.1f} s  "
                f"{verdict}  {why}",
                flush=True,
            )
    print(f"{len(mutants)} mutants, {alive} failures")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
