"""`./run soak model`: every exploration at full size, one line each; a violated rule prints its steps.

python -m tests.model.run [--states N] [NAME ...]
"""

import argparse
import sys

from tests.model.bounds import Bounds
from tests.model.explore import Explorer, Report, Violation

FULL: dict[str, tuple[Bounds, int]] = {
    b.name: (b, at_most)
    for b, at_most in (
        (Bounds("two terms", 2, 2), 2_000_000),  # complete
        (Bounds("one crash", 2, 2, crashes=1, stalls=False), 2_000_000),  # complete
        (Bounds("three terms", 3, 3), 500_000),
        (Bounds("figure 8", 3, 2, stalls=False), 500_000),
        (Bounds("slow disks, one crash", 2, 2, crashes=1, slow=True, stalls=False), 300_000),
        (Bounds("from nothing", 2, 2, pre_vote=True, transfers=True, led=False), 300_000),
        (Bounds("witness", 3, 2, voters="12", witnesses="3"), 1_050_000),
        (Bounds("members", 3, 3, spares="4", changes=("+4", "-3"), stalls=False), 300_000),
    )
}
REDUCED = 8_000
"""States of each exploration in `./run test`; a mutant's budget in `./run mutants judge` is larger."""


def explore(names: list[str], at_most: int | None = None) -> list[Report]:
    """Run explorations by name, all of them without names.

    Raises:
        Violation: a rule is broken.
    """
    reports = []
    for name in names or list(FULL):
        bounds, full = FULL[name]
        reports.append(Explorer(bounds, min(full, at_most or full)).run())
        print(reports[-1].text(), flush=True)
    return reports


def main() -> int:
    """Run the command line; 1 when a rule is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *FULL])
    parser.add_argument("--states", type=int, help="at most so many of each")
    asked = parser.parse_args()
    try:
        reports = explore(asked.names, asked.states)
    except Violation as found:
        print(found)
        return 1
    print(
        f"model: {sum(r.states for r in reports):,} states, {len(reports)} explorations, no rule broken"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
