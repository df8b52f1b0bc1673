"""The simulator and the scenarios that come with nyala, run in a process of their own (`nyala chaos`).

They are in the wheel as files that no module of nyala imports, and in a clone in `tests`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nyala.common.errors import NotFound

HERE = Path(__file__).parents[1]
INSTALLED, CLONE = HERE / "chaos_suite", HERE.parents[1]
PROGRAM = "tests.sim.named.run"


def suite() -> Path:
    """Return the folder that has the simulator.

    Raises:
        NotFound: this installation has none.
    """
    for folder in (INSTALLED, CLONE):
        if (folder / "tests" / "sim" / "named" / "run.py").is_file():
            return folder
    raise NotFound(
        f"this installation of nyala has no simulator: neither {INSTALLED} nor {CLONE / 'tests'} exists; "
        "install the wheel, which contains it, or run the command in a clone of the repository"
    )


def listing() -> list[tuple[str, str, str]]:
    """Return name, design document and content of each named scenario."""
    done = subprocess.run(_command("list"), env=_environment(), stdout=subprocess.PIPE, check=True)
    return [(name, document, text) for name, document, text in json.loads(done.stdout)]


def run(words: Sequence[str]) -> int:
    """Run the program with some words, and return its exit status; what it prints is printed."""
    return subprocess.run(_command(*words), env=_environment(), check=False).returncode


def _command(*words: str) -> list[str]:
    """Return a command; -P keeps the present folder, which may have other `tests`, out of the search path."""
    return [sys.executable, "-P", "-m", PROGRAM, *words]


def _environment() -> dict[str, str]:
    paths = [str(suite()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
