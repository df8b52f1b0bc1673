"""`./run bench NAME ...`: runs benchmarks one after the other.

SIGINT and SIGTERM end them and stop the clusters that they started.
`--etcd PROGRAM` and `--etcd-benchmark PROGRAM` name the programs that `consensus` and `journal` measure too;
without them they use `etcd` and `etcd-benchmark` from the PATH, and omit what is not installed.
`--kudu FOLDER` names Kudu's programs and Java client (`kudu_cluster.py`) for `kudu`, `store`, `master`,
`spark`; the last one needs `--kudu-spark PYTHON` too (`spark_kudu.py`).
"""

import argparse
import os
import signal
import sys
from importlib import import_module
from inspect import signature
from typing import NoReturn

from nyala.testing.forkserver import MALLOC

NAMES = (
    "write",
    "scan",
    "lookups",
    "small",
    "store",
    "failover",
    "consensus",
    "groups",
    "group_commit",
    "kudu",
    "copy",
    "master",
    "journal",
    "coordinator",
    "security",
    "transactions",
    "spark",
)


def main(words: list[str]) -> int:
    """Run the named benchmarks; without a name, list all."""
    parser = argparse.ArgumentParser("./run bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    for option in ("--etcd", "--etcd-benchmark"):
        parser.add_argument(option, metavar="PROGRAM", help="to measure beside ours")
    parser.add_argument(
        "--kudu", metavar="FOLDER", help="Kudu's programs and client, to run beside"
    )
    parser.add_argument(
        "--kudu-spark", metavar="PYTHON", help="Python with PySpark 3.5, for kudu-spark"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rows, where there is a choice")
    for option in ("--rows", "--decisions"):
        parser.add_argument(option, type=int, metavar="N", help="of `transactions`")
    arguments = parser.parse_args(words)
    if arguments.etcd:
        os.environ["ETCD"] = arguments.etcd
    if arguments.etcd_benchmark:
        os.environ["ETCD_BENCHMARK"] = arguments.etcd_benchmark
    if arguments.kudu:
        os.environ["KUDU"] = arguments.kudu
    if arguments.kudu_spark:
        os.environ["KUDU_SPARK"] = arguments.kudu_spark
    names = arguments.names
    unknown = [n for n in names if n not in NAMES]
    if unknown or not names:
        which = f"no benchmark {', '.join(unknown)}" if unknown else "name one or more benchmarks"
        print(f"{which}; there are: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    if "store" in names and not os.environ.items() >= MALLOC.items():
        os.environ.update(MALLOC)  # memory is allocated as in a server
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.main", *words])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    for name in names:
        benchmark = import_module(f"benchmarks.{name}").run
        given = {n: getattr(arguments, n) for n in ("quick", "rows", "decisions")}
        taken = {n: v for n, v in given.items() if v and n in signature(benchmark).parameters}
        benchmark(**taken).show()
    return 0


def _end(number: int, _frame: object) -> NoReturn:
    """Exit through every `with`, which stops what was started. A second signal is ignored."""
    for other in (signal.SIGINT, signal.SIGTERM):
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
