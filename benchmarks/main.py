"""`./run bench NAME ...`: runs benchmarks one after the other.

`--etcd PROGRAM` and `--etcd-benchmark PROGRAM` name what `consensus` measures beside ours; without them it
takes `etcd` and `etcd-benchmark` from the PATH, and leaves out what is not there.
"""

import argparse
import os
import sys
from importlib import import_module

NAMES = ("write", "scan", "failover", "consensus", "groups", "group_commit")


def main(words: list[str]) -> int:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser("./run bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    for option in ("--etcd", "--etcd-benchmark"):
        parser.add_argument(option, metavar="PROGRAM", help="to measure beside ours")
    told = parser.parse_args(words)
    if told.etcd:
        os.environ["ETCD"] = told.etcd
    if told.etcd_benchmark:
        os.environ["ETCD_BENCHMARK"] = told.etcd_benchmark
    names = told.names
    unknown = [n for n in names if n not in NAMES]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in names or NAMES:
        import_module(f"benchmarks.{name}").run().show()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
