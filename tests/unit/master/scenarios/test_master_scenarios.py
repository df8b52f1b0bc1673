"""Every scenario in tests/scenarios/master; commands and format in master_runner.py."""

from pathlib import Path

import pytest

from tests.unit.master.scenarios.master_runner import run_file

SCENARIOS = sorted((Path(__file__).parents[3] / "scenarios" / "master").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_scenario(path):
    assert path.read_text().startswith("# "), f"{path.name} does not begin with its purpose"
    run_file(path)


def test_scenario_files_exist():
    assert len(SCENARIOS) >= 8
