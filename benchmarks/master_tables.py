"""Creation of tables of many tablets by real processes, in turn with Kudu; cost of 500 idle replicas."""

import statistics
import time
from collections.abc import Callable

import pyarrow as pa

import nyala
from benchmarks.groups import Processes
from benchmarks.kudu_cluster import Kudu
from benchmarks.report import Report
from nyala.testing import MiniCluster

COLUMNS = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.string())])
TABLETS = 300
REPLICAS = 500
KUDU_TABLETS_S = 94.0
"""Kudu's recorded figure on such a machine, used where Kudu is not given."""
PAUSE_S = 3.0
"""Seconds between a drop and the next creation, in which the replicas of the dropped table are deleted."""
LIMIT_S = 60.0
IDLE_S = 10.0


def create(client: nyala.Client, name: str, tablets: int) -> float:
    """Create a table of three columns and replicas; return the seconds until all tablets run."""
    began = time.perf_counter()
    by_key = nyala.Partition(hash=[nyala.Hash(["k"], tablets)])
    client.create_table(name, COLUMNS, ["k"], by_key)
    return time.perf_counter() - began


def created(report: Report, cluster: MiniCluster, kudu: Kudu | None, rounds: int) -> None:
    """Add the time to create tables of `TABLETS` tablets, in nyala and Kudu in turn."""
    tservers, masters = Processes(cluster), Processes(cluster, "master")
    with cluster.connect(int(LIMIT_S * 1000)) as client:
        create(client, "first", 3)
        if kudu is not None:
            kudu.order("many", "first", 3)
        own_times, kudu_times, cpu = [], [], []
        for number in range(rounds):
            before = _cpu_s(tservers, masters)
            own_times.append(create(client, f"many{number}", TABLETS))
            cpu.append(_cpu_s(tservers, masters) - before)
            client.drop_table(f"many{number}")
            _gone(tservers)
            if kudu is not None:
                kudu_times.append(kudu.order("many", f"many{number}", TABLETS)[0])
                kudu.order("drop", f"many{number}")
                time.sleep(PAUSE_S)
    rate = TABLETS / statistics.median(own_times)
    beside = TABLETS / statistics.median(kudu_times) if kudu_times else KUDU_TABLETS_S
    if kudu_times:
        report.add(
            f"{TABLETS} tablets: Kudu", beside, "tablets/s",
            f"{TABLETS / max(kudu_times):.0f} to {TABLETS / min(kudu_times):.0f}",
        )  # fmt: skip
    whose = "Kudu in this run" if kudu_times else "Kudu's figure"
    report.add(
        f"{TABLETS} tablets x 3 replicas, from the call until all run", rate, "tablets/s",
        f"{rate / beside:.2f}x of {whose}; {TABLETS / max(own_times):.0f} to {TABLETS / min(own_times):.0f}",
        at_least=beside,
    )  # fmt: skip
    report.add(
        "CPU of all six servers for it", 1000 * statistics.median(cpu) / TABLETS, "ms/tablet"
    )


def _cpu_s(*groups: Processes) -> float:
    return sum(group.cpu_s(name) for group in groups for name in group.names)


def _gone(tservers: Processes) -> None:
    """Wait until the replicas of a dropped table are deleted."""
    _until(
        lambda: all(tservers.running(n) <= LEFT for n in tservers.names), "replicas to be deleted"
    )


LEFT = 3
"""Number of replicas of the first, small table."""


def _until(done: Callable[[], bool], what: str) -> float:
    began = time.perf_counter()
    while not done():
        if time.perf_counter() > began + LIMIT_S:
            raise TimeoutError(f"waited {LIMIT_S:.0f} s for {what}")
        time.sleep(0.1)
    return time.perf_counter() - began


def empty(report: Report, cluster: MiniCluster, seconds: float) -> None:
    """Add the cost of idle servers without replicas."""
    time.sleep(2)
    processes = Processes(cluster, "")
    found = processes.cpu_percent(lambda: time.sleep(seconds))
    masters = [p for n, p in zip(processes.names, found, strict=True) if n.startswith("master")]
    others = [p for n, p in zip(processes.names, found, strict=True) if not n.startswith("master")]
    report.add("a master with nothing in it: CPU, the most", max(masters), "%", _percents(masters))
    report.add("a tablet server, the same", max(others), "%", _percents(others))


def idle(report: Report, cluster: MiniCluster, seconds: float) -> None:
    """Add the cost of masters and tablet servers with `REPLICAS` replicas each, and the start of one."""
    tservers, masters = Processes(cluster), Processes(cluster, "master")
    empty_kb = tservers.rss_kb()
    with cluster.connect(int(LIMIT_S * 1000)) as client:
        took = create(client, "wide", REPLICAS)
    report.add(f"{REPLICAS} tablets x 3 replicas, from the call until all run", took, "s")
    tservers.wait_asleep(REPLICAS)
    both = [*tservers.names, *masters.names]
    processes = Processes(cluster, "")
    percent = dict(
        zip(processes.names, processes.cpu_percent(lambda: time.sleep(seconds)), strict=True)
    )
    shown = [percent[n] for n in both]
    report.add(
        f"tablet server with {REPLICAS} idle replicas: CPU, the most",
        max(percent[n] for n in tservers.names), "%", _percents(shown[:3]),
    )  # fmt: skip
    report.add(
        f"master of {REPLICAS} idle tablets: CPU, the most",
        max(percent[n] for n in masters.names), "%", _percents(shown[3:]),
    )  # fmt: skip
    report.add(
        f"tablet server with {REPLICAS} replicas: resident memory", tservers.rss_kb() / 1024, "MiB",
        f"{(tservers.rss_kb() - empty_kb) / REPLICAS:.0f} KiB a replica",
    )  # fmt: skip
    name = tservers.names[0]
    cluster.kill(name)
    began = time.perf_counter()
    cluster.start(name, wait=False)
    _until(lambda: _up(tservers, name), "the restarted server's replicas")
    report.add(
        f"kill -9 and start with {REPLICAS} replicas: all running again",
        time.perf_counter() - began, "s",
    )  # fmt: skip


def _up(tservers: Processes, name: str) -> bool:
    try:
        return tservers.running(name) >= REPLICAS
    except OSError:  # its web port is not open yet
        return False


def _percents(found: list[float]) -> str:
    return " / ".join(f"{p:.1f}" for p in found)
