"""Look-ups and writes of one row: coroutines of `nyala.aio` beside threads of `nyala.connect`, in turn."""

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
KINDS = ("threads", "coroutines")
ROUNDS = 3
SECONDS = 1.5
WARM_SECONDS = 1.0


def run(*, quick: bool = False) -> Report:
    """Run the benchmark; quick: one round."""
    report = Report(
        "small", "one row of 200 B a call, 3 replicas of one tablet, synced, one client process"
    )
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(MiniCluster())
        with nyala.connect(cluster.masters) as client:
            table = client.create_table("t", SCHEMA, ["k"])
            table.upsert(pa.table({"k": range(KEYS), "v": ["v" * VALUE_BYTES] * KEYS}))
        for work in ("get", "upsert"):
            with contextlib.ExitStack() as running:
                clients: dict[str, Clients] = {}
                for kind in KINDS:
                    module, words = "benchmarks.small_calls", [cluster.masters, "t", kind, work]
                    clients[kind] = Clients(module, words, 1)
                    running.callback(clients[kind].close)
                    clients[kind].measure(16, WARM_SECONDS)
                for callers in CALLERS:
                    _compare(report, clients, work, callers, 1 if quick else ROUNDS)
    return report


def _compare(
    report: Report, clients: dict[str, Clients], work: str, callers: int, rounds: int
) -> None:
    """Measure both kinds in turn; add a line for each.

    Args:
        report: gets the lines.
        clients: by kind.
        work: get or upsert.
        callers: number of threads or coroutines.
        rounds: number of measurements of each.
    """
    rates: dict[str, list[Rate]] = {kind: [] for kind in clients}
    for _ in range(rounds):
        for kind, running in clients.items():
            rates[kind].append(running.measure(callers, SECONDS))
    threads = statistics.median(r.ops_s for r in rates["threads"])
    for kind, found in rates.items():
        rate = statistics.median(r.ops_s for r in found)
        words = "" if kind == "threads" else f"; threads x {rate / max(1, threads):.2f}"
        add_rates(report, f"{work}, {callers} {kind}", found, words)
