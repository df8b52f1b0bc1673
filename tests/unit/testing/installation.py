"""An installation of nyala's wheel in a new virtual environment."""

import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.waiting import within

ROOT = Path(__file__).parents[3]


def run(*words: str) -> None:
    """Run a command and fail with what it prints if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=within(300))
    assert done.returncode == 0, done.stdout + done.stderr


def install(place: Path) -> Path:
    """Build the wheel in a folder and install it there, beside the packages that it needs.

    Returns:
        The folder of the virtual environment.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "-q", "--no-deps", "--wheel-dir", str(place), str(ROOT))
    (wheel,) = place.glob("nyala-*.whl")
    made = place / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", str(made))
    python = str(made / "bin" / "python")
    run(*pip, "--python", python, "install", "-q", "--no-deps", "--no-index", str(wheel))
    (site,) = made.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return made
