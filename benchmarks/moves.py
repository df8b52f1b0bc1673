"""Write gaps during moves of replicas, and the time that a group lacks a member after a server is killed."""

import threading
import time
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pyarrow as pa

import nyala
from benchmarks.report import Report
from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.common.errors import Unavailable
from nyala.operate.member_steps import MemberKind
from nyala.operate.membership import Membership
from nyala.testing import MiniCluster

TRIES = 300

SMALL = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class Writer(threading.Thread):
    """Upserts one row at a time and records the time of each."""

    def __init__(self, masters: str) -> None:
        super().__init__(daemon=True)
        self._table = nyala.connect(masters).table("small")
        self.stop = threading.Event()
        self.times: list[float] = []

    def run(self) -> None:
        """Write until stopped."""
        number = 0
        while not self.stop.is_set():
            began = time.perf_counter()
            self._table.upsert([{"k": number % 1000, "v": number}])
            self.times.append(time.perf_counter() - began)
            number += 1

    def take_p99_ms(self) -> float:
        """Return the 99th percentile since the last call."""
        times, self.times = self.times, []
        return float(np.percentile(times, 99)) * 1000

    def take_longest_s(self) -> float:
        """Return the longest time of a write since the last call, the write in progress included."""
        ended = len(self.times)
        while len(self.times) == ended and self.is_alive():
            time.sleep(0.01)
        times, self.times = self.times, []
        return max(times)

    def end(self) -> None:
        """Stop after the write in progress."""
        self.stop.set()
        self.join()


class Moved:
    """One table's only tablet on four tablet servers, and changes of its members.

    Args:
        cluster: cluster of four tablet servers.
        table: name of the table.
    """

    def __init__(self, cluster: MiniCluster, table: str) -> None:
        self._cluster = cluster
        self._table = table
        self._connection = Connection(cluster.masters, ClientOptions(timeout_ms=60_000))
        ((self.tablet, _),) = cluster.leaders(table).items()
        self._members = Membership(self._connection.core, self.tablet, timeout_ms=600_000)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def names(self) -> tuple[list[str], str]:
        """Return the servers with a replica, the leader first, and the one without."""
        servers = {self._cluster.address(n): n for n in self._cluster.names if "tserver" in n}
        for _ in range(TRIES):  # masters learn of a removed member from the next report
            with self._cluster.connect() as client:
                place = client.table(self._table).tablets()[0]
            holders = sorted((a for _, a in place.replicas), key=lambda a: a != place.leader)
            found = [servers[a] for a in holders]
            spare = [n for n in servers.values() if n not in found]
            if spare:
                return found, spare[0]
            time.sleep(0.1)
        raise Unavailable(f"all of {', '.join(found)} have a replica of {self._table}")

    def address(self, name: str) -> str:
        """Return a server's address."""
        return self._cluster.address(name)

    def move(self, old: str, new: str) -> float:
        """Move a replica; return the seconds that it took."""
        return self._timed(self._members.move(self.address(old), self.address(new)))

    def add(self, name: str, kind: MemberKind) -> float:
        """Add a member; as `move`."""
        return self._timed(self._members.add(self.address(name), kind))

    def fill(self, name: str) -> float:
        """Copy the data to a witness; as `move`."""
        return self._timed(self._members.change_type(self.address(name), MemberKind.VOTER))

    def remove(self, name: str) -> float:
        """Remove a member; as `move`."""
        return self._timed(self._members.remove(self.address(name)))

    def _timed(self, work: Coroutine[Any, Any, object]) -> float:
        began = time.perf_counter()
        self._connection.run(work)
        return time.perf_counter() - began


def move_repeatedly(report: Report, cluster: MiniCluster, moves: int) -> None:
    """Move a replica while rows are written to it one at a time; every third move is of the leader's."""
    with nyala.connect(cluster.masters) as client:
        client.create_table("small", SMALL, ["k"])
        group, writer = Moved(cluster, "small"), Writer(cluster.masters)
        writer.start()
        time.sleep(1)
        before, gaps, took = writer.take_longest_s(), [], []
        for number in range(moves):
            holders, target = group.names()
            took.append(group.move(holders[number % 3], target))
            gaps.append(writer.take_longest_s())
        writer.end()
        group.close()
        report.add("one move of a small tablet, median", float(np.median(took)), "s")
        report.add(
            f"longest write gap of {moves} moves", max(gaps), "s", f"before: {before:.3f} s", at_most=0.5
        )  # fmt: skip


def _move_when_reachable(group: Moved, old: str, new: str) -> float:
    """As `group.move`, to a server that was just started: connections to it are in back-off for a while."""
    for _ in range(60):
        try:
            return group.move(old, new)
        except Unavailable:  # raised before anything is changed
            time.sleep(0.5)
    raise Unavailable(f"{new} did not come back")


def repair_after_kill(report: Report, cluster: MiniCluster, size_mb: int) -> None:
    """Kill a server of "big": time until one more may fail, with a witness first and with a whole copy."""
    group = Moved(cluster, "big")
    holders, spare = group.names()
    dead = holders[1]
    cluster.kill(dead)
    witness = group.add(spare, MemberKind.WITNESS) + group.remove(dead)
    report.add(f"{size_mb} MB: a witness in the dead one's place", witness, "s")
    report.add(f"{size_mb} MB: the witness filled, later", group.fill(spare), "s")
    cluster.start(dead)
    group.remove(dead)
    holders, spare = group.names()
    cluster.kill(holders[1])
    whole = _move_when_reachable(group, holders[1], spare)
    report.add(
        f"{size_mb} MB: a whole copy in the dead one's place", whole, "s",
        f"{whole / witness:.1f}x of a witness",
    )  # fmt: skip
    group.close()
