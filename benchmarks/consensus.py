"""Small durable writes: consensus alone, the public client beside etcd, and writes while leaders are killed.

Each line is the median of `ROUNDS` short measurements; each round measures nyala and etcd in turn.
"""

import contextlib
import statistics
import tempfile
from collections.abc import Callable, Sequence

import nyala
from benchmarks import etcd, failover
from benchmarks.load import Clients, Rate
from benchmarks.report import Report
from benchmarks.small_writes import SCHEMA
from nyala.testing import MiniCluster

CALLERS = (1, 16, 64, 256)
PROCESSES = (1, 4)
ROUNDS = 3
SECONDS = 1.5
WARM_SECONDS = 1.0
ETCD_PUTS = {1: 1_500, 16: 6_000, 64: 12_000, 256: 20_000}
KUDU_UPSERTS = {1: 756, 16: 1605}
"""Recorded rate of Kudu's acknowledged single upserts with fsync on such a machine, by number of threads."""

Measure = Callable[[int], Rate]


def run() -> Report:
    """Run the benchmark."""
    report = Report("consensus", "upserts of 200 B rows, 3 replicas of one tablet, synced")
    parts: tuple[Callable[[Report], None], ...] = (_ceiling, _callers, _kills)
    for part in parts:
        try:
            part(report)
        except Exception as err:  # the other parts are reported all the same
            report.add(f"{part.__name__.strip('_')} was NOT measured: {err}"[:200], 0, "")
    return report


def _ceiling(report: Report) -> None:
    """Add the rate of three servers with the log and the peer port only."""
    with tempfile.TemporaryDirectory(prefix="nyala-bench-raft-") as folder:
        ports = ",".join(map(str, etcd.free_ports(3)))
        hosts = Clients("benchmarks.raft_host", [folder, ports], 3)
        try:
            hosts.measure(3 * 4, WARM_SECONDS)  # time to elect a leader
            hosts.measure(3 * 4, WARM_SECONDS)
            for callers in CALLERS:
                found = [hosts.measure(3 * callers, SECONDS) for _ in range(ROUNDS)]
                add_rates(report, f"{callers} callers: consensus and log alone (256 B)", found)
        finally:
            hosts.close()


def _callers(report: Report) -> None:
    """Add the rates of the public client and of etcd, measured in turn."""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(MiniCluster())
        with nyala.connect(cluster.masters) as client:
            client.create_table("t", SCHEMA, ["k"])
        rivals = beside(report, stack)
        for processes in PROCESSES:
            clients = Clients("benchmarks.small_writes", [cluster.masters, "t"], processes)
            stack.callback(clients.close)
            clients.measure(4 * processes, WARM_SECONDS)
            for callers in (c for c in CALLERS if c >= processes):
                kinds = {
                    "nyala": lambda count, clients=clients: clients.measure(count, SECONDS),
                    **(rivals if processes == 1 else {}),
                }
                _compare(report, kinds, callers, processes)


def _kills(report: Report) -> None:
    """Add the write gaps after leaders are killed."""
    report.rows += failover.run().rows


def beside(report: Report, stack: contextlib.ExitStack) -> dict[str, Measure]:
    """Return the measurements of etcd by name; none, and a line that says so, if it is not installed."""
    program, tool = etcd.program(), etcd.benchmark()
    if program is None:
        report.add(etcd.MISSING, 0, "")
        return {}
    leader = stack.enter_context(etcd.Etcd(program)).leader()
    kinds: dict[str, Measure] = {}
    if tool is not None:
        kinds["etcd, its own Go client"] = lambda callers: etcd.own_benchmark(
            tool, leader, callers, ETCD_PUTS[callers]
        )
    for kind in ("coroutines", "threads"):
        clients = Clients("benchmarks.etcd_puts", [leader, kind], 1)
        stack.callback(clients.close)
        kinds[f"etcd, Python {kind}"] = lambda count, clients=clients: clients.measure(
            count, SECONDS
        )
    return kinds


def _compare(report: Report, kinds: dict[str, Measure], callers: int, processes: int) -> None:
    """Measure all kinds in turn; add a line for each."""
    rates: dict[str, list[Rate]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, measure in kinds.items():
            rates[name].append(measure(callers))
    own_rate = statistics.median(r.ops_s for r in rates["nyala"])
    for name, found in rates.items():
        words = ""
        if name != "nyala":
            words = f"; nyala {own_rate / max(1, statistics.median(r.ops_s for r in found)):.2f}x"
        elif callers in KUDU_UPSERTS and processes == 1:
            words = f"; Kudu's figure x {own_rate / KUDU_UPSERTS[callers]:.2f}"
        add_rates(report, f"{callers} callers in {processes} processes: {name}", found, words)


def add_rates(report: Report, label: str, found: Sequence[Rate], words: str = "") -> None:
    """Add a line with the median of some measurements.

    Args:
        report: gets the line.
        label: names what was measured.
        found: the measurements.
        words: follow the latencies.
    """
    p50 = statistics.median(r.p50_ms for r in found)
    p99 = statistics.median(r.p99_ms for r in found)
    if errors := sum(r.errors for r in found):
        words += f"; {errors} ERRORS"
    report.add(
        label, statistics.median(r.ops_s for r in found), "ops/s",
        f"p50 {p50:.2f} ms, p99 {p99:.2f} ms{words}",
    )  # fmt: skip
