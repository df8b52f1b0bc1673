"""The masters at scale: tables of many tablets, a large catalog, failover and repair; with Kudu where given.

`--quick` uses a catalog of a tenth, and fewer rounds.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from benchmarks import kudu_cluster, master_deaths, master_scale, master_tables
from benchmarks.report import Report
from nyala.testing import MiniCluster


def run(quick: bool = False) -> Report:
    """Run the benchmark."""
    report = Report("master", "3 masters, 3 tablet servers, 3 replicas, synced, default settings")
    parts: tuple[Callable[[], object], ...] = (
        lambda: asyncio.run(master_scale.measure(report, 1_000 if quick else 10_000)),
        lambda: _cluster(report, quick),
        lambda: master_deaths.repaired(report, 24 if quick else 200),
    )
    for part in parts:
        began = time.perf_counter()
        try:
            part()
        except Exception as err:  # the other parts are reported all the same
            report.add(f"NOT measured: {type(err).__name__}: {err}"[:200], 0, "", at_least=1)
        print(f"({time.perf_counter() - began:.0f} s)", flush=True)
    return report


def _cluster(report: Report, quick: bool) -> None:
    found = kudu_cluster.programs()
    with MiniCluster() as cluster:
        master_tables.empty(report, cluster, 5.0 if quick else 15.0)
        with contextlib.ExitStack() as beside:
            kudu = None if found is None else beside.enter_context(kudu_cluster.Kudu(found))
            master_tables.created(report, cluster, kudu, 2 if quick else 5)
            master_deaths.definitions(report, cluster, kudu, 1 if quick else 5)
        master_tables.idle(report, cluster, 5.0 if quick else 15.0)
