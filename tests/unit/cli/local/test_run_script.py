"""`./run` installs the packages of a verb once, and not again after those of a larger lock."""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
LOCKS = ("base", "spark", "dev", "bench")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the script and the locks, whose environment has a Python that records its arguments."""
    shutil.copy(ROOT / "run", tmp_path)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\n')
    python.chmod(0o755)
    return tmp_path


def install(clone: Path, lock: str) -> None:
    digest = hashlib.sha256((clone / "requirements" / f"{lock}.lock").read_bytes()).hexdigest()
    (clone / ".venv" / f".installed-{lock}-{digest[:16]}").touch()


def run(clone: Path, *words: str) -> list[str]:
    """Return the locks that a verb installs."""
    calls = clone / "calls"
    calls.unlink(missing_ok=True)
    command = ["bash", str(clone / "run"), *words]
    subprocess.run(command, check=True, env=os.environ, capture_output=True)
    return re.findall(r"-r requirements/(\w+)\.lock", calls.read_text())


@pytest.mark.parametrize("installed", LOCKS)
def test_command_line_after_any_other_verb_installs_nothing(clone, installed):
    install(clone, installed)
    assert run(clone, "nyala", "version") == []


def test_verb_installs_a_larger_lock_once(clone):
    install(clone, "base")
    assert run(clone, "py", "-V") == ["spark"]
    assert run(clone, "py", "-V") == []
    assert run(clone, "check") == ["dev"]
    assert run(clone, "py", "-V") == []


def test_changed_lock_is_installed_again(clone):
    install(clone, "spark")
    with (clone / "requirements" / "spark.lock").open("a") as lock:
        lock.write("# changed\n")
    assert run(clone, "nyala", "version") == ["base"]


@pytest.mark.parametrize(
    ("small", "large"), [("base", "spark"), ("spark", "dev"), ("spark", "bench")]
)
def test_larger_lock_includes_the_smaller_one(small, large):
    def pins(name: str) -> set[str]:
        text = (ROOT / "requirements" / f"{name}.lock").read_text()
        return set(re.findall(r"^\S+==\S+", text, re.M))

    assert pins(small) <= pins(large)


def test_python_runs_in_the_folder_of_the_user_and_finds_the_repository(clone, tmp_path_factory):
    install(clone, "spark")
    python = clone / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\necho "$PWD $PYTHONPATH $@" >{clone}/calls\n')
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    subprocess.run(["bash", str(clone / "run"), "py", "my.py"], check=True, cwd=elsewhere)
    assert (clone / "calls").read_text() == f"{elsewhere} {clone}/src:{clone} my.py\n"
