"""Directed scenarios of tests/scenarios/raft without a test runner, so that a mutant costs a second or two.

python -m tests.judge.scenarios [fault_free]
"""

import sys
from pathlib import Path

from tests.scenarios.raft_runner import run_file

FOLDER = Path(__file__).parents[1] / "scenarios" / "raft"
FAULT_FREE = ("election", "proposals_travel_together", "reads_share_a_round")
"""Scenarios without a fault."""


def failing(fault_free: bool) -> str:
    """Return the first scenario with another transcript than expected; empty if there is none."""
    for path in sorted(FOLDER.glob("*.txt")):
        if fault_free and path.stem not in FAULT_FREE:
            continue
        try:
            run_file(path)
        except Exception as err:  # any effect of a mutant
            return f"FAILED scenario {path.stem}: {type(err).__name__}"
    return ""


if __name__ == "__main__":
    found = failing(sys.argv[1:] == ["fault_free"])
    print(found or "all scenarios gave the expected transcripts")
    sys.exit(bool(found))
