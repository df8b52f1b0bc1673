"""`./run mutants` on a tree of one module: killed mutants, surviving ones, and those without a verdict."""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.mutation import forked_tests
from scripts.mutation import trial as trials
from scripts.mutation import work as works
from scripts.mutation.edits import ROOT
from scripts.mutation.tree import Tree
from scripts.mutation.trial import Found, Trial
from scripts.mutation.verdicts import Verdicts
from tests.waiting import wait_until

TEST = """
import os, subprocess, time
from nyala import sums

def test_leaves_server_process_and_hangs():
    session = subprocess.Popen("setsid sleep 300 & echo $! > pid.new; mv pid.new pid", shell=True)
    assert session.wait() == 0
    while True:
        time.sleep(0.01)

def test_sum():
    assert sums.add(2, 2) == 4

def test_skips():
    import pytest
    pytest.skip("always")

def test_waits():
    while sums.add(1, 0) != 1:
        time.sleep(0.01)

def test_reports_delay():
    late = os.path.exists("loaded")
    assert sums.add(1, 0) == 1 and not late, "not within 30 s: one"
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Return a tree with one function and its tests."""
    made: Path = tmp_path_factory.mktemp("tree")
    for folder in ("src/nyala", "tests"):
        (made / folder).mkdir(parents=True)
        (made / folder / "__init__.py").write_text("")
    (made / "src/nyala/sums.py").write_text("def add(a, b):\n    return a + b\n")
    (made / "tests/test_sums.py").write_text(TEST)
    (made / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\npythonpath = ["src", "."]\nfilterwarnings = ["error"]\n'
    )
    return made


@pytest.fixture(scope="module")
def tree(root, tmp_path_factory) -> Iterator[Tree]:
    """Return a copy of it in which mutants are tried."""
    made = Tree(tmp_path_factory.mktemp("copy"), root)
    yield made
    made.close()


@pytest.fixture
def trial(tree, monkeypatch) -> Trial:
    """Return a trial with a limit of three seconds for each mutant."""
    monkeypatch.setattr(trials, "TIMEOUT_S", 3)
    return Trial(tree)


def mutant(
    replace: str, killed_by: str = "tests/test_sums.py::test_sum", find: str = "a + b"
) -> Any:
    return {
        "file": "src/nyala/sums.py",
        "find": find,
        "replace": replace,
        "killed_by": killed_by,
    }


def test_failing_test_kills_mutant_and_edit_is_undone(trial, tree, root):
    verdict, killer = trial.verdict(mutant("a - b"))
    assert verdict.startswith("killed by tests/test_sums.py::test_sum: ")
    assert killer == "tests/test_sums.py::test_sum"
    assert (tree.root / "src/nyala/sums.py").read_text() == "def add(a, b):\n    return a + b\n"
    assert trial.unchanged(mutant("a - b"))[0] == ""


def test_mutant_without_failing_test_survives(trial):
    assert trial.verdict(mutant("b + a")) == Found("SURVIVED")


def test_mutant_that_ends_the_process_is_no_kill_and_the_run_goes_on(trial):
    crash = trial.verdict(mutant("__import__('os').abort()"))
    assert crash.verdict.startswith("pytest exit -6: ")
    assert trial.verdict(mutant("a - b")).verdict.startswith("killed by ")


def test_mutants_of_equal_length_are_distinguished(trial):
    found = [trial.verdict(mutant(text)) for text in ("a - b", "b + a", "a * b", "a % b") * 2]
    assert [v.verdict[:8] for v in found] == ["killed b", "SURVIVED", "SURVIVED", "killed b"] * 2


def test_skipped_missing_or_unimportable_tests_kill_nothing(trial):
    assert trial.verdict(mutant("a.\n", find="a + b\n")).verdict.startswith("STALE: ")
    assert trial.verdict(mutant("", find="def add")).verdict.startswith("STALE: ")
    raises = mutant('raise ValueError("on import")\ndef add', find="def add")
    assert trial.verdict(raises).verdict.startswith("pytest exit ")
    assert trial.verdict(mutant("a - b", "tests/test_sums.py -k skips")).verdict.startswith(
        "pytest exit "
    )
    assert trial.verdict(mutant("a - b", "tests/test_sums.py -k none")).verdict.startswith(
        "pytest exit "
    )


def test_tests_failing_in_unchanged_tree_are_reported(trial, tree):
    (tree.root / "loaded").touch()
    late = mutant("a - b", "tests/test_sums.py -k delay")
    assert "not within 30 s" in trial.unchanged(late)[0]
    os.unlink(tree.root / "loaded")
    assert trial.unchanged(late)[0] == ""


def test_hanging_test_is_detected_and_gives_no_verdict_on_a_delayed_machine(trial, tree):
    hangs = mutant("a - b - 1", "tests/test_sums.py -k waits")
    assert trial.verdict(hangs).verdict.startswith("killed by the time limit")
    late = mutant("a - b - 1", "tests/test_sums.py -k delay")
    assert trial.verdict(late).verdict.startswith("killed by ")
    (tree.root / "loaded").touch()
    assert trial.verdict(late).verdict == ""
    os.unlink(tree.root / "loaded")


HANGS = "tests/test_sums.py -k leaves_server"


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_processes_left_by_a_test_end_with_it(tree):
    outcome = tree.run(mutant("a - b", HANGS), 3)
    assert outcome["exit"] is None
    assert not is_running(int((tree.root / "pid").read_text()))
    os.unlink(tree.root / "pid")


def test_interrupted_run_ends_its_processes_and_keeps_its_verdicts(root, tmp_path):
    """Ctrl-C: the second mutant's test hangs, and the first one's verdict is kept."""
    folder, verdicts = tmp_path / "mutants", tmp_path / "verdicts.json"
    folder.mkdir()
    edits = [mutant("a - b"), mutant("a * b", HANGS)]
    text = "".join(
        "[[mutant]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in m.items()) for m in edits
    )
    (folder / "sums.toml").write_text(text)
    code = (
        "import sys; from pathlib import Path; from scripts import mutants as m\n"
        "from scripts.mutation import edits, trial, work\n"
        f"m.ROOT = work.ROOT = Path({str(root)!r})\n"
        f"edits.FOLDER, trial.TIMEOUT_S = Path({str(folder)!r}), 300\n"
        f"sys.exit(m.main(['sums', '--verdicts', {str(verdicts)!r}]))\n"
    )
    copies = Path(sys.prefix, "mutants", hashlib.sha256(str(root).encode()).hexdigest()[:12])
    run = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        wait_until(
            lambda: list(copies.glob("*/tree/pid")), "the second test has started its server"
        )
        run.send_signal(signal.SIGINT)
        run.wait(60)
        (pid,) = copies.glob("*/tree/pid")
        assert not is_running(int(pid.read_text()))
        assert [v.split()[-1] for v in json.loads(verdicts.read_text()).values()] == ["killed"]
    finally:
        run.kill()
        run.wait()
        shutil.rmtree(copies, ignore_errors=True)


def test_processes_of_a_test_end_with_the_run_of_mutants(root, tmp_path):
    script = Path(forked_tests.__file__)
    request = {"scratch": str(tmp_path), "limit_s": 300, "kernels": str(tmp_path / "kernels")}
    runner = subprocess.Popen(
        [sys.executable, script], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, text=True,
    )  # fmt: skip
    assert runner.stdin
    runner.stdin.write(json.dumps({**request, "arguments": HANGS.split()}) + "\n")
    runner.stdin.flush()
    try:
        wait_until((root / "pid").exists, "the test has started its server")
        runner.stdin.close()
        assert runner.wait(30) == 0
    finally:
        runner.kill()
        runner.wait()
    assert not is_running(int((root / "pid").read_text()))
    os.unlink(root / "pid")


def test_tree_copy_is_restored(root, tmp_path):
    Tree(tmp_path, root).close()
    copy = tmp_path / "tree"
    (copy / "src/nyala/sums.py").write_text("")
    (copy / "src/nyala/gone.py").write_text("")
    Tree(tmp_path, root).close()
    found, wanted = (
        sorted(str(p.relative_to(tree)) for p in tree.rglob("*.py")) for tree in (copy, root)
    )
    assert found == wanted
    assert (copy / "src/nyala/sums.py").read_text() == (root / "src/nyala/sums.py").read_text()


def test_killing_tests_must_pass_in_unchanged_tree(trial, tree, tmp_path, capsys, monkeypatch):
    (tree.root / "loaded").touch()
    edits = [mutant("a - b"), mutant("a * b", "tests/test_sums.py -k delay"), mutant("b + a")]
    asked = argparse.Namespace(only="", minutes=1)
    verdicts = Verdicts(tmp_path / "verdicts.json", tree.root)
    monkeypatch.setattr(works, "own_copy", lambda root: contextlib.nullcontext(tree))
    monkeypatch.setattr(trials, "LATE", re.compile("never"))
    work = works.Work([("suite", edit) for edit in edits], verdicts, asked)
    assert work.work() > 0
    os.unlink(tree.root / "loaded")
    assert [verdicts.of("suite", edit) for edit in edits] == ["killed", None, "SURVIVED"]
    assert work.unsound == 1
    output = capsys.readouterr().out
    assert "1/3 suite" in output
    assert "FAILED in the unchanged tree: suite tests/test_sums.py::test_reports_delay" in output


KERNEL = """
from numba import njit, types
@njit(types.int64(types.int64), cache=True, inline="always")
def {name}(x):
    return x + 1
"""
USER = """
from numba import njit, types
from nyala.parts.inner import inner
@njit(types.int64(types.int64), cache=True)
def outer(x):
    return inner(x) * 2
"""


@pytest.mark.full
def test_cached_bytecode_hides_no_mutant_or_change(root, tmp_path):
    whole = tmp_path / "tree"
    shutil.copytree(root, whole)
    (whole / "src/nyala/parts").mkdir()
    (whole / "src/nyala/parts/inner.py").write_text(KERNEL.format(name="inner"))
    (whole / "src/nyala/parts/apart.py").write_text(KERNEL.format(name="apart"))
    (whole / "src/nyala/parts/outer.py").write_text(USER)
    (whole / "tests/test_outer.py").write_text(
        "from nyala.parts.apart import apart\nfrom nyala.parts.outer import outer\n\n"
        "def test_outer():\n    assert outer(1) == 4\n    assert apart(1) == 2\n"
    )
    edit = {"file": "src/nyala/parts/inner.py", "find": "x + 1", "killed_by": "tests/test_outer.py"}
    made = Tree(tmp_path / "copy", whole)
    trial = Trial(made)
    assert trial.unchanged(edit)[0] == ""
    assert trial.verdict({**edit, "replace": "x + 2"}).verdict.startswith("killed by ")
    assert trial.verdict({**edit, "replace": "1 + x"}) == Found("SURVIVED")
    assert trial.unchanged(edit)[0] == ""
    made.close()
    changed = KERNEL.format(name="inner").replace("x + 1", "x + 3")
    (whole / "src/nyala/parts/inner.py").write_text(changed)
    made = Tree(tmp_path / "copy", whole)
    assert "assert 8 == 4" in Trial(made).unchanged(edit)[0]
    made.close()
