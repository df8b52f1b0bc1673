"""Every story in tests/scenarios/raft; commands and format in tests/scenarios/raft_runner.py."""

from pathlib import Path

import pytest

from tests.scenarios.raft_runner import run_file

STORIES = sorted((Path(__file__).parents[2] / "scenarios" / "raft").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda p: p.stem)
def test_story(path):
    assert path.read_text().startswith("# "), f"{path.name} does not begin with its purpose"
    run_file(path)


def test_there_are_stories():
    assert len(STORIES) >= 12
