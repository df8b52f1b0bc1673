"""The directed stories of tests/scenarios/raft without a test runner, so that a mutant costs a second or two.

python -m tests.judge.stories [calm]
"""

import sys
from pathlib import Path

from tests.scenarios.raft_runner import run_file

FOLDER = Path(__file__).parents[1] / "scenarios" / "raft"
CALM = ("election", "proposals_travel_together", "reads_share_a_round")
"""Stories in which nothing goes wrong."""


def failing(calm: bool) -> str:
    """Return the first story that does not go as it is written; empty: all do."""
    for path in sorted(FOLDER.glob("*.txt")):
        if calm and path.stem not in CALM:
            continue
        try:
            run_file(path)
        except Exception as err:  # whatever a mistake leads to
            return f"FAILED story {path.stem}: {type(err).__name__}"
    return ""


if __name__ == "__main__":
    found = failing(sys.argv[1:] == ["calm"])
    print(found or "all stories go as written")
    sys.exit(bool(found))
