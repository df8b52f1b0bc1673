"""`./run bench NAME ...`: runs benchmarks one after the other."""

import sys
from importlib import import_module

NAMES = ("write", "scan", "failover", "consensus", "groups", "group_commit")


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all."""
    unknown = [n for n in names if n not in NAMES]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in names or NAMES:
        import_module(f"benchmarks.{name}").run().show()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
