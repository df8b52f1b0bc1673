"""Look-ups and writes of one row: threads, coroutines, and threads in several client processes, in turn."""

import contextlib
import statistics

import pyarrow as pa

import nyala
from benchmarks.consensus import add_rates
from benchmarks.load import Clients, Rate
from benchmarks.report import Report
from benchmarks.small_calls import KEYS
from benchmarks.small_writes import SCHEMA, VALUE_BYTES
from nyala.testing import MiniCluster

CALLERS = (1, 64, 256)
THREADS, COROUTINES, SEVERAL = "threads", "coroutines", "threads in 4 processes"
KINDS = {THREADS: (THREADS, 1), COROUTINES: (COROUTINES, 1), SEVERAL: (THREADS, 4)}
"""Callers of `small_calls` and number of client processes, by the name in the report."""
SEVERAL_CALLERS = (16, 64)
"""Numbers of threads over all processes."""
ROUNDS = 3
SECONDS = 1.5
WARM_SECONDS = 1.0


def run(*, quick: bool = False) -> Report:
    """Run the benchmark; quick: one round."""
    rounds = 1 if quick else ROUNDS
    report = Report("small", "one row of 200 B a call, 3 replicas of one tablet, synced")
    with MiniCluster() as cluster:
        with nyala.connect(cluster.masters) as client:
            table = client.create_table("t", SCHEMA, ["k"])
            table.upsert(pa.table({"k": range(KEYS), "v": ["v" * VALUE_BYTES] * KEYS}))
        for work in ("get", "upsert"):
            with contextlib.ExitStack() as running:
                clients: dict[str, Clients] = {}
                for name, (kind, processes) in KINDS.items():
                    module, words = "benchmarks.small_calls", [cluster.masters, "t", kind, work]
                    clients[name] = Clients(module, words, processes)
                    running.callback(clients[name].close)
                    clients[name].measure(16, WARM_SECONDS)
                for other, numbers in ((COROUTINES, CALLERS), (SEVERAL, SEVERAL_CALLERS)):
                    both = {name: clients[name] for name in (THREADS, other)}
                    for callers in numbers:
                        _compare(report, both, work, callers, rounds)
    return report


def _compare(
    report: Report, clients: dict[str, Clients], work: str, callers: int, rounds: int
) -> None:
    """Measure threads of one process and another kind in turn; add a line for each.

    Args:
        report: gets the lines.
        clients: by kind.
        work: get or upsert.
        callers: number of threads or coroutines, over all processes.
        rounds: number of measurements of each.
    """
    rates: dict[str, list[Rate]] = {kind: [] for kind in clients}
    for _ in range(rounds):
        for kind, running in clients.items():
            rates[kind].append(running.measure(callers, SECONDS))
    threads = statistics.median(r.ops_s for r in rates[THREADS])
    for kind, found in rates.items():
        rate = statistics.median(r.ops_s for r in found)
        words = "" if kind == THREADS else f"; threads x {rate / max(1, threads):.2f}"
        add_rates(report, f"{work}, {callers} {kind}", found, words)
