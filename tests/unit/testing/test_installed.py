"""Uses of an installed wheel: tests of a project with a cluster, and `nyala chaos`."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.unit.testing.installation import ROOT, install
from tests.waiting import within

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

FILE = re.compile(r"```python\n# (\w+\.py)\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("installed"))


def use(installed: Path, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of the installation in a folder."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHON"))}
    command = [str(installed / "bin" / words[0]), *words[1:]]
    return subprocess.run(
        command, cwd=folder, env=env, text=True, capture_output=True, check=False,
        timeout=within(300),
    )  # fmt: skip


@pytest.mark.row("W1")
def test_project_of_the_page_on_testing_passes_with_the_installed_wheel(installed, tmp_path):
    page = (ROOT / "docs" / "use" / "testing.md").read_text()
    files = dict(FILE.findall(page))
    assert sorted(files) == ["conftest.py", "test_orders.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = use(installed, tmp_path, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.row("W3")
def test_installed_wheel_runs_the_scenarios_beside_tests_of_the_user(installed, tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").write_text("raise ImportError('not these')\n")
    listed = use(installed, tmp_path, "nyala", "chaos", "list", "--format", "csv")
    for name in ("t=1", "t=5", "create_1", "create_4", "raft/3.4_election", "master/lost_orders"):
        assert f"{name}," in listed.stdout, listed.stderr
    every = use(installed, tmp_path, "nyala", "chaos", "run")
    assert every.returncode == 0, every.stdout + every.stderr
    assert every.stdout.endswith(f"{len(listed.stdout.splitlines()) - 1} scenarios, 0 failed\n")
    for level in ("core", "wal", "host", "moving", "cluster", "ensembles"):
        seed = use(installed, tmp_path, "nyala", "chaos", "run", "--seed", "1", "--level", level)
        assert seed.returncode == 0, seed.stdout + seed.stderr
        assert "1 seeds" in seed.stdout
    unused = [*(installed / "lib").glob("python*/site-packages/tests")]
    assert not unused, "the wheel has a package of its own name only"
