"""The full size of tests/faults: 30 faults of each kind on a cluster, 300 power cuts of the log alone.

python -m tests.faults.soak [KIND ...] --count 30 --minutes 60 --seed 1
"""

import argparse
import sys

from tests.faults.support import sandbox
from tests.faults.support.kinds import KINDS

WAL = "wal"
CUTS_PER_FAULT = 10
"""Power failures of the log alone for each fault of a cluster; they take a tenth of the time."""


def main() -> int:
    """Run the command line; the first kind that fails ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", help=f"of {[WAL, *KINDS]}; all if none is given")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=60, help="for each kind")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if sentence := sandbox.missing():
        print(f"nothing was run: {sentence}", file=sys.stderr)
        return 2
    rest = ("--seed", given.seed, "--minutes", given.minutes)
    for kind in given.kinds or [WAL, *KINDS]:
        command: tuple[object, ...] = ("tests.faults.run", kind, "--count", given.count)
        if kind == WAL:
            command = ("tests.faults.wal_cuts", "--cuts", CUTS_PER_FAULT * given.count)
        module, *args = command
        limit_s = 60 * given.minutes + 300
        sandbox.run(str(module), *args, *rest, timeout_s=limit_s, show=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
