"""A sample of `./run mutants judge`: all mutants apply, two are killed, and the unchanged tree passes."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from scripts.mutation.verdicts import Verdicts
from tests.judge import directed

ROOT = Path(__file__).parents[2]
SAMPLE = {
    "the CRC is ignored at the tail": "tails",
    "expired by the local clock": "expiry",
}
"""Mutants, and the directed run that kills them first."""


def test_every_mutant_applies():
    found = tomllib.loads((ROOT / "tests" / "mutants" / "judge.toml").read_text())["mutant"]
    for mutant in found:
        text, find = (ROOT / mutant["file"]).read_text(), mutant["find"]
        for one in [find] if isinstance(find, str) else find:
            assert text.count(one) == 1, f"{mutant['why']}: {one!r} in {mutant['file']}"


@pytest.mark.full
def test_unchanged_tree_passes():
    assert directed.main(sorted(SAMPLE.values())) == 0


@pytest.mark.full
@pytest.mark.parametrize("mistake", SAMPLE)
def test_mutant_is_killed(mistake: str, tmp_path: Path):
    command = [sys.executable, "-m", "scripts.mutants", "judge", "--only", mistake]
    command += ["--verdicts", str(tmp_path / "verdicts.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert SAMPLE[mistake] in done.stdout


def test_verdict_is_valid_until_code_of_file_or_tests_changes(tmp_path: Path):
    mutant = {"file": "a.py", "find": "1", "replace": "2", "killed_by": "tests/test_a.py::test_one"}
    (tmp_path / "tests").mkdir()
    (tmp_path / "a.py").write_text("a = 1\n")
    (tmp_path / "tests" / "test_a.py").write_text("def test_one(): ...\n")
    path = tmp_path / "verdicts.json"
    Verdicts(path, tmp_path).record("suite", mutant, "killed")
    assert Verdicts(path, tmp_path).of("suite", mutant) == "killed"
    assert Verdicts(path, tmp_path).of("another", mutant) is None
    assert Verdicts(path, tmp_path).of("suite", {**mutant, "replace": "3"}) is None
    (tmp_path / "tests" / "test_a.py").write_text("def test_one(): assert True\n")
    assert Verdicts(path, tmp_path).of("suite", mutant) is None
    Verdicts(path, tmp_path).record("suite", mutant, "SURVIVED")
    (tmp_path / "a.py").write_text("a = 1\nb = 3\n")
    assert Verdicts(path, tmp_path).of("suite", mutant) is None


DOCUMENTED = '''"""A module."""

A = 1
"""A constant."""


class C:
    """A class."""

    def f(self) -> str:
        """Return a text."""
        return "text"  # a comment
'''


def test_verdict_survives_changes_of_docstrings_comments_and_formatting(tmp_path: Path):
    mutant = {"file": "a.py", "find": "A = 1", "replace": "A = 2", "killed_by": "test_a.py"}
    path, tests = tmp_path / "verdicts.json", tmp_path / "test_a.py"
    (tmp_path / "a.py").write_text(DOCUMENTED)
    tests.write_text("def test_one():\n    assert True\n")
    Verdicts(path, tmp_path).record("suite", mutant, "killed")
    other = DOCUMENTED.replace("# a comment", "").replace('"text"', "(\n'te' 'xt')")
    other = other.replace('"""A ', '"""Another ').replace('"""Return', '"""Give')
    (tmp_path / "a.py").write_text(other)
    tests.write_text('"""Tests."""\n\n\ndef test_one():\n    """It holds."""\n    assert (True)\n')
    assert Verdicts(path, tmp_path).of("suite", mutant) == "killed"
    (tmp_path / "a.py").write_text(DOCUMENTED.replace('"text"', '"other text"'))
    assert Verdicts(path, tmp_path).of("suite", mutant) is None


def test_verdict_is_bound_to_edit_of_same_code(tmp_path: Path):
    mutant = {"file": "a.py", "find": "# here\nA = 1", "replace": "A = 2", "killed_by": "test_a.py"}
    (tmp_path / "test_a.py").write_text("def test_one(): ...\n")
    (tmp_path / "a.py").write_text("# here\nA = 1\nA = 1\n")
    path = tmp_path / "verdicts.json"
    Verdicts(path, tmp_path).record("suite", mutant, "killed")
    (tmp_path / "a.py").write_text("A = 1\n# here\nA = 1\n")
    assert Verdicts(path, tmp_path).of("suite", mutant) is None


def test_verdict_is_bound_to_the_tested_tree(tmp_path: Path):
    mutant = {"file": "a.py", "find": "1", "replace": "2", "killed_by": "test_a.py"}
    for name, text in (("copy", "a = 1\n"), ("changed since", "a = 1\nb = 1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text(text)
        (tmp_path / name / "test_a.py").write_text("def test_one(): ...\n")
    path = tmp_path / "verdicts.json"
    verdicts = Verdicts(path, tmp_path / "changed since")
    Verdicts(path, tmp_path).record("another", mutant, "killed", tmp_path / "copy")
    verdicts.record("suite", mutant, "killed", tmp_path / "copy")
    assert verdicts.of("suite", mutant) is None
    assert Verdicts(path, tmp_path / "copy").of("suite", mutant) == "killed"
    assert Verdicts(path, tmp_path / "copy").of("another", mutant) == "killed"
