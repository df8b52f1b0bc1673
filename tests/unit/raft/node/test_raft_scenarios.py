"""Every scenario in tests/scenarios/raft; commands and format in tests/scenarios/raft_runner.py."""

from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from tests.scenarios.raft_runner import run_file

SCENARIOS = sorted((Path(__file__).parents[3] / "scenarios" / "raft").glob("*.txt"))


def _scenario(path: Path) -> ParameterSet:
    """A line `# rows: S1.4 S1.5` at the top names the guarantees that a scenario checks."""
    named = [line for line in path.read_text().splitlines()[:6] if line.startswith("# rows: ")]
    marks = [pytest.mark.row(*line.removeprefix("# rows: ").split()) for line in named]
    return pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", [_scenario(path) for path in SCENARIOS])
def test_scenario(path):
    assert path.read_text().startswith("# "), f"{path.name} does not begin with its purpose"
    run_file(path)


def test_scenario_files_exist():
    assert len(SCENARIOS) >= 45
