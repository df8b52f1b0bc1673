"""The folder of compiled kernels: of the user, found again by later processes, never one of another user."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nyala
from nyala.common.kernels import cache
from tests.unit.testing.other_users import NOBODY, as_user, needs_root
from tests.waiting import within

SOURCE = Path(nyala.__file__).parent.parent
FOLDER = "from nyala.common.kernels import cache; print(cache.folder()); print(cache.folder())"
WARNING = "compiled kernels are kept in"


def python(
    code: str, environment: dict[str, str], *before: str, source: Path = SOURCE
) -> subprocess.CompletedProcess[str]:
    """Run code in a process with an environment of its own."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(source)} | environment
    return subprocess.run(
        [*before, sys.executable, "-c", code], capture_output=True, text=True, check=False,
        timeout=within(300), cwd="/", env=environment,
    )  # fmt: skip


def folder(**environment: str) -> Path:
    """Return the folder that a process uses; it prints no warning."""
    done = python(FOLDER, environment)
    assert (done.returncode, done.stderr) == (0, "")
    first, again = done.stdout.splitlines()
    assert first == again
    return Path(first)


def test_folder_is_below_the_users_cache_folder(tmp_path):
    home, xdg = tmp_path / "home", tmp_path / "xdg"
    assert folder(HOME=str(home)) == home / ".cache" / "nyala" / "kernels"
    assert (
        folder(HOME=str(home), XDG_CACHE_HOME="relative") == home / ".cache" / "nyala" / "kernels"
    )
    assert folder(HOME=str(home), XDG_CACHE_HOME=str(xdg)) == xdg / "nyala" / "kernels"
    assert folder(HOME=str(home), NUMBA_CACHE_DIR=str(tmp_path)) == tmp_path
    assert (xdg / "nyala" / "kernels").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("home", ["file", "shared"])
def test_temporary_folder_is_used_with_one_warning_and_found_again(tmp_path, home):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    if home == "file":
        (tmp_path / "home").touch()
    else:
        shared = tmp_path / "home" / ".cache" / "nyala" / "kernels"
        shared.mkdir(parents=True)
        shared.chmod(0o777)
    environment = {"HOME": str(tmp_path / "home"), "TMPDIR": str(temporary)}
    child = f"subprocess.run([sys.executable, '-c', {FOLDER!r}], check=True)"
    nested = f"{FOLDER}; import subprocess, sys; {child}"
    done = python(nested, environment)
    assert done.returncode == 0
    assert done.stderr.count(WARNING) == 1, "the processes that it starts do not repeat the warning"
    places = {*done.stdout.split(), *python(FOLDER, environment).stdout.split()}
    assert places == {str(temporary / f"nyala-{os.geteuid()}" / "kernels")}


def test_temporary_folder_of_another_user_is_not_used(tmp_path):
    planted = tmp_path / f"nyala-{os.geteuid()}" / "kernels"
    planted.mkdir(parents=True)
    planted.chmod(0o777)
    (tmp_path / "home").touch()
    done = python(FOLDER, {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)})
    (place,) = {Path(line) for line in done.stdout.splitlines()}
    assert place.name.startswith("nyala-kernels-")
    assert place.stat().st_mode & 0o777 == 0o700


def test_setting_of_numba_is_restored(monkeypatch, tmp_path):
    from numba.core import config

    before = config.CACHE_DIR
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    with cache.used():
        assert str(tmp_path) == config.CACHE_DIR
    assert before == config.CACHE_DIR


WARM = "from nyala.testing.warm import warm_kernels; print(warm_kernels())"
LOADED = """
from nyala.tablet.kernels import key_index
kernels = [k.stats for k in vars(key_index).values() if hasattr(k, "stats")]
print(sum(sum(s.cache_hits.values()) for s in kernels), sum(sum(s.cache_misses.values()) for s in kernels))
"""


@pytest.mark.full
@needs_root
@pytest.mark.parametrize("home", ["own", "absent", "unset"])
def test_installation_of_root_is_used_by_another_user_who_compiles_once(tmp_path, home):
    installed, own = tmp_path / "installed", tmp_path / "own"
    shutil.copytree(SOURCE, installed, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (installed, *installed.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)
    environment = {"TMPDIR": str(own)}
    if home != "unset":
        environment["HOME"] = str(own) if home == "own" else "/nonexistent"

    def run(code: str) -> tuple[str, str]:
        done = python(code, environment, *as_user(NOBODY), source=installed)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    assert run(WARM)[0] == "True\n"
    written, errors = run(WARM)
    assert written == "False\n", "they are found again"
    assert errors.count(WARNING) == (home != "own")
    found, compiled = map(int, run(LOADED)[0].split())
    assert found > 10
    assert compiled == 0
    assert not list(installed.rglob("__pycache__"))
