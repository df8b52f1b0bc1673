"""A journal of a million entries beside one of ten thousand: appends, tails, memory, starts, copies."""

import re
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import nyala
from benchmarks.copy import Copier
from benchmarks.journal_appends import LOG, STAMP
from benchmarks.load import Clients, Rate
from benchmarks.report import Report
from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

SMALL, LARGE, QUICK_LARGE = 10_000, 1_000_000, 100_000
DATA_BYTES = 100
STEP_ENTRIES = 64
LOADERS = 8
SECONDS, ROUNDS = 1.0, 12
KILLS = 3
START_TIMEOUT_S = 120
CALM_S = 10
"""Time after the load, for flushes and merges, in seconds."""
OPTIONS = {"repair": "off", "flush_bytes": "4000000"}
"""No repair of killed servers; at most 4 MB of unflushed changes, which are no memory of entries."""
MEMORY_BYTES = 40
"""Target: bytes of memory of an entry beside its data."""
SMALL_ONES = ("small", "other")
"""Journals of `SMALL` entries; two, since rates of two equal ones differ by a tenth in a run."""


def large_journals(report: Report, *, quick: bool) -> None:
    """Add all of it, in a cluster of four tablet servers."""
    count = QUICK_LARGE if quick else LARGE
    rounds, kills = (1, 1) if quick else (ROUNDS, KILLS)
    with ExitStack() as stack:
        cluster = stack.enter_context(MiniCluster(tservers=4, options=OPTIONS))
        client = stack.enter_context(nyala.connect(cluster.masters))
        two = _Journals(cluster, client, count)
        for name in SMALL_ONES:
            client.create_journal(name)
            two.load(name, SMALL)
        client.create_journal("large")
        server = two.server_of_both()
        few = count // 10
        two.load("large", few)
        time.sleep(CALM_S)
        few_bytes, few_s = two.restart(server)
        began = time.perf_counter()
        two.load("large", count - few)
        report.add(
            f"entries of {DATA_BYTES} B appended, {STEP_ENTRIES} a step, {LOADERS} callers, to {count:,}",
            (count - few) / (time.perf_counter() - began), "entries/s",
        )  # fmt: skip
        time.sleep(CALM_S)
        grown = (two.memory(server) - few_bytes) / (count - few)
        bytes_after, many_s = two.restart(server)
        an_entry = (bytes_after - few_bytes) / (count - few)
        report.add(
            f"memory of an entry beside its {DATA_BYTES} B: a restarted server with {count:,}, less {few:,}",
            an_entry - DATA_BYTES, "B",
            f"in the process that took the appends: {grown - DATA_BYTES:.0f} B, with the free memory that "
            "its allocator keeps",
            at_most=None if quick else MEMORY_BYTES,
        )  # fmt: skip
        report.add(
            f"kill -9 and restart of a server with {count:,} entries, until all replicas run", many_s, "s",
            f"with {few:,}: {few_s:.2f} s",
        )  # fmt: skip
        two.cost(report, stack, rounds)
        two.tails(report, stack)
        two.take_over(report, kills)
        two.copy(report)


class _Journals:
    """Journals of one cluster: `SMALL_ONES` and `large`.

    Args:
        cluster: four tablet servers.
        client: of the cluster.
        count: entries of the large one.
    """

    def __init__(self, cluster: MiniCluster, client: nyala.Client, count: int) -> None:
        self._cluster = cluster
        self._client = client
        self._count = count
        self._copier = Copier(cluster)

    # ---- content and places ----------------------------------------------------------------------

    def load(self, name: str, count: int) -> None:
        """Append entries of zeros, many a step."""
        journal = self._client.journal(name)

        def one(size: int) -> None:
            with journal.atomically() as step:
                for _ in range(size):
                    step.append(LOG, bytes(DATA_BYTES))

        sizes = [STEP_ENTRIES] * (count // STEP_ENTRIES) + [count % STEP_ENTRIES]
        with ThreadPoolExecutor(LOADERS) as pool:
            for _ in pool.map(one, [size for size in sizes if size]):
                pass

    def _leader(self, name: str) -> str:
        """Return the server that leads a journal."""
        names = {self._cluster.address(n): n for n in self._cluster.names}
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            leader = names.get(self._client.journal(name).location().leader or "")
            if leader is not None:
                return leader
            time.sleep(0.05)
        raise RuntimeError(f"journal {name} has no leader")

    def _tablets(self, server: str) -> dict[str, str]:
        """Return the states of the replicas on a server."""
        found = self._copier.ask(server, methods.LIST_TABLETS, pb.ListTabletsRequest()).tablets
        return {t.report.tablet_id: t.report.state for t in found}

    def server_of_both(self) -> str:
        """Return a server that has both journals; one that leads neither, if there is one."""
        ids = {self._client.journal(n).location().id for n in ("small", "large")}
        leaders = {self._leader(n) for n in ("small", "large")}
        servers = [n for n in self._cluster.names if n.startswith("tserver")]
        both = [n for n in servers if ids <= self._tablets(n).keys()]
        return min(both, key=lambda name: name in leaders)

    def memory(self, server: str) -> int:
        """Return the anonymous memory of a server's process, in bytes."""
        pid = Path(self._cluster.data_dir(server) + ".pid").read_text().split()[0]
        status = Path(f"/proc/{pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert found is not None, status
        return int(found.group(1)) * 1024

    # ---- measurements ----------------------------------------------------------------------------

    def restart(self, server: str) -> tuple[int, float]:
        """Kill and start a server; return its memory, and the seconds until its replicas ran."""
        self._cluster.kill(server)
        began = time.perf_counter()
        self._cluster.start(server, wait=False)
        while set(self._states(server)) != {"RUNNING"}:
            if time.perf_counter() - began > START_TIMEOUT_S:
                raise RuntimeError(f"{server} has not started: {self._states(server)}")
            time.sleep(0.01)
        took = time.perf_counter() - began
        self._cluster.wait_healthy()
        return self.memory(server), took

    def _states(self, server: str) -> list[str]:
        try:
            return list(self._tablets(server).values())
        except nyala.errors.NyalaError as err:  # it does not answer yet
            return [err.code]

    def cost(self, report: Report, stack: ExitStack, rounds: int) -> None:
        """Add appends to all journals, by turns."""
        kinds: dict[str, Clients] = {}
        for name in (*SMALL_ONES, "large"):
            arguments = [self._cluster.masters, name]
            kinds[name] = Clients("benchmarks.journal_appends", arguments, 1)
            stack.callback(kinds[name].close)
            kinds[name].measure(4, 1.0)
        for callers in (1, 64):
            rates: dict[str, list[Rate]] = {name: [] for name in kinds}
            for number in range(rounds):
                for name in sorted(kinds, reverse=bool(number % 2)):
                    rates[name].append(kinds[name].measure(callers, SECONDS))
            found = {n: statistics.median(r.ops_s for r in rates[n]) for n in rates}
            ops = {n: [max(1.0, r.ops_s) for r in rates[n]] for n in rates}
            equal = [one / two for one, two in zip(*(ops[n] for n in SMALL_ONES), strict=True)]
            mean = map(statistics.mean, zip(*(ops[n] for n in SMALL_ONES), strict=True))
            ratios = [few / many for few, many in zip(mean, ops["large"], strict=True)]
            words = ", ".join(f"{name} {ops_s:,.0f} /s" for name, ops_s in found.items())
            report.add(
                f"append to {self._count:,} entries in parts of one to {SMALL:,}, {callers} callers",
                statistics.median(ratios), "x",
                f"{words}; median of the rounds, that of two journals of {SMALL:,}: "
                f"{statistics.median(equal):.2f} x",
                at_most=1.1,
            )  # fmt: skip

    def tails(self, report: Report, stack: ExitStack) -> None:
        """Add the time from the begin of an append to its event at a tail of another process."""
        clients = Clients("benchmarks.journal_appends", [self._cluster.masters, "large"], 1)
        stack.callback(clients.close)
        log = self._client.journal("large").log(LOG)
        for callers in (1, 16):
            reader = _Reader(log.tail(after=log.last_id()))
            reader.start()
            rate = clients.measure(callers, 2 * SECONDS)
            log.append(b"end")
            reader.join(START_TIMEOUT_S)
            took = sorted(reader.latencies_ms)
            if not took:
                raise RuntimeError("the tail returned no entries")
            report.add(
                f"append to its event at a tail, {callers} callers: p50", took[len(took) // 2], "ms",
                f"p99 {took[len(took) * 99 // 100]:.2f} ms, {len(took)} events; the appends themselves p50 "
                f"{rate.p50_ms:.2f}, p99 {rate.p99_ms:.2f} ms",
            )  # fmt: skip

    def take_over(self, report: Report, kills: int) -> None:
        """Add the gap of appends when a leader is killed."""
        gaps: dict[str, list[float]] = {"small": [], "large": []}
        for _ in range(kills):
            for name, found in gaps.items():
                log = self._client.journal(name).log(LOG)
                log.append(b"before")
                victim = self._leader(name)
                self._cluster.kill(victim)
                began = time.perf_counter()
                log.append(b"after")
                found.append(time.perf_counter() - began)
                self._cluster.start(victim)
        report.add(
            f"leader of {self._count:,} entries killed {kills} times: median until the next append",
            statistics.median(gaps["large"]), "s",
            f"worst {max(gaps['large']):.2f} s; with {SMALL:,}: {statistics.median(gaps['small']):.2f} s, "
            f"worst {max(gaps['small']):.2f} s",
        )  # fmt: skip

    def copy(self, report: Report) -> None:
        """Add copies of both journals to the server that has none of them."""
        found = {}
        for name in ("small", "large"):
            tablet = self._client.journal(name).location().id
            found[name] = self._copier.copy_tablet(
                tablet, self._leader(name), lambda: time.sleep(0.01)
            )
        done = found["large"]
        size = done.bytes_total + done.log_bytes
        report.add(
            f"tablet copy of {self._count:,} entries", done.elapsed_ms / 1000, "s",
            f"{size / 1e6:.0f} MB, {size / max(1, done.elapsed_ms) / 1000:.0f} MB/s; with {SMALL:,}: "
            f"{found['small'].elapsed_ms / 1000:.2f} s",
        )  # fmt: skip


class _Reader(threading.Thread):
    """Notes when the events of a tail come, until the entry "end".

    Args:
        events: events of the tail.
    """

    def __init__(self, events: Iterator[nyala.Entry | nyala.Invalidated | nyala.Rebased]) -> None:
        super().__init__(daemon=True)
        self._events = events
        self.latencies_ms: list[float] = []

    def run(self) -> None:
        """Read."""
        for event in self._events:
            now = time.monotonic_ns()
            if isinstance(event, nyala.Entry):
                if event.data == b"end":
                    return
                (began,) = STAMP.unpack_from(event.data)
                self.latencies_ms.append((now - began) / 1e6)
