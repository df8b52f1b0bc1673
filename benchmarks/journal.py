"""Journals: appends beside one-row upserts and etcd's puts; cost of a journal of a million entries.

Rates are medians of `ROUNDS` short measurements of all kinds in turn.
"""

import contextlib
import statistics

import nyala
from benchmarks.consensus import CALLERS, ROUNDS, SECONDS, WARM_SECONDS, Measure, add_rates, beside
from benchmarks.journal_entries import large_journals
from benchmarks.load import Clients, Rate
from benchmarks.report import Report
from benchmarks.small_writes import SCHEMA
from nyala.testing import MiniCluster

APPENDS, UPSERTS = "appends", "upserts of a 200 B row"


def run(quick: bool = False) -> Report:
    """Run the benchmark."""
    report = Report("journal", "appends of 256 B to one log, 3 replicas, synced")
    for part in (_callers, large_journals):
        try:
            part(report, quick=quick)
        except Exception as err:  # the other parts are reported all the same
            name = part.__name__.strip("_")
            report.add(f"{name} was NOT measured: {type(err).__name__}: {err}"[:300], 0, "")
    return report


def _callers(report: Report, *, quick: bool) -> None:
    """Add appends, upserts and etcd's puts, measured in turn."""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(MiniCluster())
        with nyala.connect(cluster.masters) as client:
            client.create_table("t", SCHEMA, ["k"])
            client.create_journal("j")
        ours = {
            APPENDS: Clients("benchmarks.journal_appends", [cluster.masters, "j"], 1),
            UPSERTS: Clients("benchmarks.small_writes", [cluster.masters, "t"], 1),
        }
        kinds: dict[str, Measure] = {}
        for name, clients in ours.items():
            stack.callback(clients.close)
            clients.measure(4, WARM_SECONDS)
            kinds[name] = lambda count, clients=clients: clients.measure(count, SECONDS)
        kinds |= beside(report, stack)
        for callers in CALLERS:
            rates: dict[str, list[Rate]] = {name: [] for name in kinds}
            for _ in range(1 if quick else ROUNDS):
                for name, measure in kinds.items():
                    rates[name].append(measure(callers))
            _compare(report, rates, callers)


def _compare(report: Report, rates: dict[str, list[Rate]], callers: int) -> None:
    """Add a line for each kind, and the ratios of appends and upserts to each other store."""
    medians = {name: max(1.0, statistics.median(r.ops_s for r in rates[name])) for name in rates}
    for name, found in rates.items():
        add_rates(report, f"{callers} callers: {name}", found)
    appends, upserts = medians.pop(APPENDS), medians.pop(UPSERTS)
    ratios = [f"{name} {appends / r:.2f} and {upserts / r:.2f}" for name, r in medians.items()]
    what = "appends in parts of the upserts"
    if ratios:
        what = "ratio of the appends to etcd, in parts of the upserts' ratio"
    report.add(
        f"{callers} callers: {what}", appends / upserts, "x", "; ".join(ratios), at_least=1.0
    )
