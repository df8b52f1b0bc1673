"""Many Raft groups in a process: their cost when idle, and elections under load.

Real masters and tablet servers; CPU, memory, threads and files are read from /proc over bounded intervals.
"""

import os
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import nyala
from benchmarks.load import Clients
from benchmarks.report import Report
from benchmarks.small_writes import SCHEMA
from nyala.testing import MiniCluster
from nyala.testing.processes import running_pid

SERVERS = 3
STEPS = (100, 1000)
ACTIVE = 200
CALLERS = 64
IDLE_SECONDS = 15.0
ACTIVE_SECONDS = 15.0
LIMIT_S = 300.0
TARGET_PERCENT = 3.0


class Processes:
    """The server processes of one role of a cluster."""

    def __init__(self, cluster: MiniCluster, role: str = "tserver") -> None:
        self._cluster = cluster
        self.names = [n for n in cluster.names if n.startswith(role)]

    def _proc(self, name: str) -> Path:
        pid = running_pid(self._cluster._layout.server(name))
        return Path(f"/proc/{pid}")

    def cpu_s(self, name: str) -> float:
        """CPU seconds that a process has used."""
        fields = (self._proc(name) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def cpu_percent(self, work: Callable[[], None]) -> list[float]:
        """Per cent of a core used by each server while `work` runs."""
        before = [self.cpu_s(n) for n in self.names]
        began = time.perf_counter()
        work()
        took = time.perf_counter() - began
        return [100 * (self.cpu_s(n) - b) / took for n, b in zip(self.names, before, strict=True)]

    def status(self, name: str, field: str) -> int:
        """A number of /proc/PID/status."""
        lines = (self._proc(name) / "status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])

    def rss_kb(self) -> float:
        """Mean resident memory of the servers."""
        return sum(self.status(n, "VmRSS") for n in self.names) / len(self.names)

    def files(self) -> int:
        """Most open files of a server."""
        return max(len(list((self._proc(n) / "fd").iterdir())) for n in self.names)

    def threads(self) -> int:
        """Most threads of a server."""
        return max(self.status(n, "Threads") for n in self.names)

    def metric(self, name: str, metric: str) -> float:
        """A value on a server's metrics page."""
        page = f"http://{self._cluster.web_address(name)}/metrics"
        with urllib.request.urlopen(page, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        found = (line.split()[1] for line in lines if line.startswith(f"nyala_{metric} "))
        return float(next(found, "0"))  # a server that is starting has no metrics yet

    def running(self, name: str) -> float:
        """Number of running replicas of a server."""
        return self.metric(name, 'replica_state_count{state="RUNNING"}')

    def elections(self) -> float:
        """Number of elections won on all servers since their start."""
        return sum(self.metric(n, "replica_elections_won_total") for n in self.names)

    def wait_asleep(self, groups: int) -> float:
        """Wait until that many groups are quiescent on every server; return the seconds."""
        began = time.perf_counter()
        while time.perf_counter() < began + LIMIT_S:
            if all(self.metric(n, "replica_quiesced_groups") >= groups for n in self.names):
                return time.perf_counter() - began
            time.sleep(0.25)
        counts = [self.metric(n, "replica_quiesced_groups") for n in self.names]
        raise TimeoutError(f"of {groups} groups {counts} are quiescent after {LIMIT_S:.0f} s")


def run() -> Report:
    """Run the benchmark."""
    report = Report(
        "groups", f"{SERVERS} tablet servers, 3 replicas of each group, synced; one core is 100 %"
    )
    with (
        MiniCluster(tservers=SERVERS) as cluster,
        nyala.connect(cluster.masters, timeout_ms=int(LIMIT_S * 1000)) as client,
    ):
        servers = Processes(cluster)
        _idle(report, servers, 0)
        empty_kb, made = servers.rss_kb(), 0
        for groups in STEPS:
            began = time.perf_counter()
            _create(client, f"t{groups}", groups - made)
            made = groups
            servers.wait_asleep(groups)
            took = time.perf_counter() - began
            report.add(f"to {groups} groups: made, led and asleep", took, "s")
            _idle(report, servers, groups)
        report.add(
            "memory of a group and its empty tablet",
            (servers.rss_kb() - empty_kb) / made, "KiB a server",
            f"{servers.rss_kb() / 1024:.0f} MiB in all",
        )  # fmt: skip
        report.add("open files of a server", servers.files(), "files")
        report.add("threads of a server", servers.threads(), "threads")
        _restart(report, cluster, servers, made)
        _active(report, cluster, client, servers)
        servers.wait_asleep(made + ACTIVE)
    return report


def _create(client: nyala.Client, name: str, tablets: int) -> None:
    client.create_table(
        name, SCHEMA, ["k"], nyala.Partition(hash=[nyala.Hash(["k"], tablets)])
    )  # fmt: skip


def _idle(report: Report, servers: Processes, groups: int) -> None:
    before = servers.elections()
    percent = servers.cpu_percent(lambda: time.sleep(IDLE_SECONDS))
    elections = servers.elections() - before
    met = "" if groups < STEPS[-1] else f"target {TARGET_PERCENT:.0f} %: "
    if groups == STEPS[-1]:
        met += "met" if max(percent) < TARGET_PERCENT else "missed"
    shown = " / ".join(f"{p:.2f}" for p in percent)
    report.add(f"{groups} idle groups: CPU of a server, the most", max(percent), "%", met or shown)
    report.add(f"{groups} idle groups: elections in {IDLE_SECONDS:.0f} s", elections, "elections")


def _restart(report: Report, cluster: MiniCluster, servers: Processes, groups: int) -> None:
    cluster.kill(servers.names[0])
    began = time.perf_counter()
    cluster.start(servers.names[0], wait=False)
    while True:
        try:
            if servers.metric(servers.names[0], "replica_quiesced_groups") >= groups:
                break
        except OSError:
            pass
        if time.perf_counter() > began + LIMIT_S:
            raise TimeoutError("the restarted server's groups do not quiesce")
        time.sleep(0.1)
    took = time.perf_counter() - began
    report.add(f"kill -9 and start with {groups} groups: all asleep again", took, "s")


def _active(report: Report, cluster: MiniCluster, client: nyala.Client, servers: Processes) -> None:
    _create(client, "active", ACTIVE)
    clients = Clients("benchmarks.small_writes", [cluster.masters, "active"], 1)
    try:
        clients.measure(CALLERS, 3.0)  # every tablet is located and has a leader
        before = servers.elections()
        rates = []
        percent = servers.cpu_percent(
            lambda: rates.append(clients.measure(CALLERS, ACTIVE_SECONDS))
        )
        elections = servers.elections() - before
    finally:
        clients.close()
    what = f"{ACTIVE} active of {STEPS[-1] + ACTIVE} groups"
    report.add(
        f"{what}: elections in {ACTIVE_SECONDS:.0f} s", elections, "elections",
        "target 0: " + ("met" if elections == 0 else "missed"),
    )  # fmt: skip
    (rate,) = rates
    report.add(
        f"{what}: single-row upserts of {CALLERS} callers", rate.ops_s, "ops/s",
        f"p50 {rate.p50_ms:.1f} ms, p99 {rate.p99_ms:.1f} ms, errors {rate.errors}",
    )  # fmt: skip
    report.add(f"{what}: CPU of a server, the most", max(percent), "%")
