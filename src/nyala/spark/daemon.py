"""Daemon of Spark's Python workers that imports what tasks need once, before it forks the workers.

Spark starts it instead of its own daemon, on every machine with executors, if the session is created with
`spark.python.daemon.module=nyala.spark.daemon`. A worker of Spark's own daemon imports PyArrow and the client
by itself, for half a second or more. The workers that plan reads and writes are always those of Spark's own
daemon; it keeps one of each kind.

Imports only: no client is connected here, since gRPC does not work in a process that is forked after that.
"""

import gc
import importlib
import sys

from pyspark.daemon import manager

WORKER = "pyspark.worker"
"""The module that runs in workers, unless Spark names another one."""


def preload(worker: str) -> None:
    """Import what the workers of a module need.

    Args:
        worker: name of the module that Spark runs in them.
    """
    for name in (worker, "pandas", "nyala.spark.source"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the pages of these objects stay shared with the workers


if __name__ == "__main__":
    preload(sys.argv[1] if len(sys.argv) > 1 else WORKER)
    manager()
