"""`./run demo`: see the package. Exit status 0 only if every check held."""

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import nyala
from examples.flights_demo import questions, screen
from examples.flights_demo.backups import BackupChain
from examples.flights_demo.checks import Checks, differences
from examples.flights_demo.load import Load
from examples.flights_demo.loading import Loading
from examples.flights_demo.phases import Phases
from examples.flights_demo.probe import Probe
from examples.flights_demo.raw import NAMES, Raw
from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.common.errors import NyalaError
from nyala.operate.ksck.check import check as ksck
from nyala.spark.flights import statistics
from nyala.spark.flights.dataset import KEYS
from nyala.testing import MiniCluster, layout, processes
from nyala.testing.warm import warm_kernels


def main() -> int:
    """Run the demo; return the exit status."""
    parser = argparse.ArgumentParser(prog="./run demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    parser.add_argument(
        "--out", type=Path, default=Path("demo-out"), help="folder of cluster and plots"
    )
    parser.add_argument("--slices", type=int, default=8, help="steps in which the year is loaded")
    parser.add_argument("--data", type=Path, help="other raw files to load")
    parser.add_argument("--expect", type=Path, help="other raw files to compare with")
    asked = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    screen.welcome(asked.out)
    clear(asked.out)
    phases = Phases()
    began = time.monotonic()
    with phases.phase("kernels compiled, once per machine"):
        if warm_kernels():
            screen.console.print("compiled the key kernels (once per machine)")
    cluster, stays = None, False
    try:
        with phases.phase("start of the cluster"):
            cluster = MiniCluster(3, 3, str(asked.out / "cluster"))
        screen.console.print(
            f"the cluster is healthy after {phases.took['start of the cluster']:.1f} s"
        )
        checks = Checks()
        run(cluster, asked, checks, phases)
        screen.console.print(f"the whole demo took {time.monotonic() - began:.0f} s")
        stays = asked.keep
    except KeyboardInterrupt as interrupt:
        screen.console.print("\n[bold]interrupted[/bold]; stopping everything that was started")
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
    except NyalaError as err:
        screen.console.print(f"[bold red]the demo failed:[/bold red] {err}")
        return 1
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not stop the stopping
        if cluster is not None and not stays:
            cluster.close()
    if stays:
        keep(cluster, asked.out)
    return 0 if checks.good else 1


def _interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(number)


def clear(out: Path) -> None:
    """Make room: stop the cluster that an earlier run kept, and remove its data."""
    left = layout.load(str(out / "cluster"))
    if left is not None:
        processes.stop(left)
    shutil.rmtree(out / "cluster", ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)


def keep(cluster: MiniCluster, out: Path) -> None:
    """Say what to try with the cluster that stays."""
    screen.console.print(f"the cluster stays up; try:\n  export NYALA_MASTERS={cluster.masters}")
    query = "select origin, count(*) from flights where cancelled group by origin"
    screen.console.print(f'  ./run nyala sql "{query}"\n  ./run nyala cluster ksck', soft_wrap=True)
    screen.console.print(f"  ./run nyala down --dir {out / 'cluster'}")


def run(cluster: MiniCluster, asked: argparse.Namespace, checks: Checks, phases: Phases) -> None:
    """Load, kill, check, ask; leave every outcome in `checks` and print the summary."""
    with phases.phase("raw data into DuckDB"):
        raw = Raw(asked.expect or asked.data, asked.out / "raw")
    probe = Probe(cluster.masters)
    probe.start()
    backups = BackupChain(cluster.masters, asked.out / "backups", checks)
    work = asked.out / "pipeline"
    shutil.rmtree(work, ignore_errors=True)
    loading = Loading(cluster.masters, asked.slices, asked.data, work)
    load = Load(cluster, asked.slices, loading, probe, checks, backups)
    try:
        with phases.phase("load, with three kills"):
            load.run(raw)
    finally:
        loading.stop()
        probe.stop()
    checks.add(
        load.operations == raw.operations(),
        f"{load.operations:,} operations, as many as there are events",
    )
    wrong = probe.verify()
    checks.add(
        not wrong,
        f"all {len(probe.acknowledged):,} rows that were acknowledged meanwhile are there",
        wrong,
    )
    with phases.phase("comparison with the raw data"):
        compare(cluster, raw, checks)
    with phases.phase("backups and restores"):
        backups.finish()
        backups.restore(raw, load.moments[max(load.moments, default=0) - 1])
    with phases.phase("questions in Spark SQL and DuckDB"):
        answers(cluster, asked.out, checks)
    connection = Connection(cluster.masters, ClientOptions())
    try:
        problems = connection.run(ksck(connection.core)).problems
    finally:
        connection.close()
    checks.add(not problems, "nyala cluster ksck finds nothing wrong", "; ".join(problems))
    raw.close()
    size = sum(p.stat().st_size for p in Path(cluster.dir).rglob("*") if p.is_file())
    per_s = load.operations / max(load.seconds, 1e-9)
    figures = [
        (
            "operations through Spark",
            f"{load.operations:,} in {load.seconds:.0f} s: {per_s:,.0f} per second",
        ),
        ("acknowledged writes beside it", f"{len(probe.acknowledged):,}, one row each"),
        ("on disk, three replicas, logs included", f"{size / 1e6:,.0f} MB"),
        ("answers as pictures", f"{asked.out}/delay_by_*.png"),
        *((f"phase: {name}", f"{took:.1f} s") for name, took in phases.took.items()),
    ]
    screen.summary(checks, figures, load.happened)


def compare(cluster: MiniCluster, raw: Raw, checks: Checks) -> None:
    """Compare every table with the raw files, row for row."""
    with nyala.connect(cluster.masters, timeout_ms=120_000) as client:
        for name in NAMES:
            seen = client.table(name).scan().to_arrow()
            wrong = differences(seen, raw.final(name), list(KEYS[name]))
            checks.add(not wrong, f"{name}: {seen.num_rows:,} rows, equal to the raw file", wrong)
        seen = client.table(statistics.TABLE).scan().to_arrow()
        wrong = differences(seen, raw.statistics(), list(statistics.KEY))
        what = f"{seen.num_rows:,} groups of statistics that followed the changes, equal to the raw file's"
        checks.add(not wrong, what, wrong)


def answers(cluster: MiniCluster, out: Path, checks: Checks) -> None:
    """Ask the three questions in both engines, print and draw the answers."""
    spark = questions.ask_spark(cluster.masters)
    duck = questions.ask_duckdb(cluster.masters)
    for question, one, other in zip(questions.QUESTIONS, spark, duck, strict=True):
        good = questions.same(one, other)
        checks.add(good, f"{question.title}: Spark SQL and client.sql agree")
        screen.answer(question, one, questions.plot(question, one, out))


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(
        status
    )  # all is stopped; taking down an interrupted thread's DuckDB would print a page
