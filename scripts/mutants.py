"""Deliberate mistakes must die: applies each mutant of tests/mutants/*.toml and runs its test.

Usage: mutants.py [ROOM ...] [--list]. A mutant is one edit of one product file (`find` -> `replace`)
and the tests that must fail because of it (`killed_by`, pytest arguments). A mutant that survives, or
whose `find` no longer occurs exactly once, fails the run: a test that cannot fail is a defect.
"""

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


def judge(copy: Path, mutant: dict[str, Any]) -> str:
    """Apply one mutant in the copy, run its tests there, undo it; return 'killed' or what is wrong."""
    path = copy / mutant["file"]
    text = path.read_text()
    if text.count(mutant["find"]) != 1:
        return f"STALE: `find` occurs {text.count(mutant['find'])} times in {mutant['file']}"
    path.write_text(text.replace(mutant["find"], mutant["replace"]))
    tests = mutant["killed_by"]
    arguments = shlex.split(tests) if isinstance(tests, str) else list(tests)
    environ = {**os.environ, "PYTHONPATH": str(copy / "src"), "HYPOTHESIS_PROFILE": "ci"}
    environ["NUMBA_CACHE_DIR"] = str(copy / "numba-cache")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return "killed"  # a mutant that hangs its test is noticed
    finally:
        path.write_text(text)
    return {0: "SURVIVED", 1: "killed"}.get(
        done.returncode, f"pytest exit {done.returncode}: " + done.stdout[-300:]
    )


def main(arguments: list[str]) -> int:
    """Run the mutants; return 1 if any is alive."""
    mutants = load([a for a in arguments if not a.startswith("--")])
    if "--list" in arguments:
        for room, mutant in mutants:
            print(
                f"{room:<10} {mutant['file']}: {mutant.get('why', mutant['replace'].strip()[:60])}"
            )
        return 0
    alive = 0
    with tempfile.TemporaryDirectory(prefix="nyala-mutants-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv", ".git", "__pycache__"))
        for number, (room, mutant) in enumerate(mutants, 1):
            started = time.monotonic()
            verdict = judge(copy, mutant)
            alive += verdict != "killed"
            why = mutant.get("why", mutant["replace"].strip()[:50])
            print(
                f"{number:>3}/{len(mutants)} {room:<8} {time.monotonic() - started:>5.1f} s  "
                f"{verdict}  {why}",
                flush=True,
            )
    print(f"{len(mutants) - alive} passed, {alive} failed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
