"""A leader with syncs of a second transfers leadership, its loop does not block, and it is reported."""

import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from nyala.client.table import Table
from nyala.testing import MiniCluster, processes
from tests.cluster.support.ksck import ksck, wait_equal, wait_ksck
from tests.cluster.support.layouts import layout_of
from tests.cluster.support.leading import leader
from tests.faults.support.syscalls import SYNCS, injected
from tests.waiting import wait_until, within

pytestmark = pytest.mark.full

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), ("v", pa.int64())])
SLOW = "the log's disk is slow"


class Writer:
    """Upserts one row after the other, and counts the acknowledged ones."""

    def __init__(self, table: Table) -> None:
        self.acknowledged = 0
        self._table = table
        self._stop = threading.Event()

    def run(self) -> None:
        while not self._stop.is_set():
            number = self.acknowledged
            self._table.upsert(pa.table({"k": [number], "v": [number]}, schema=SCHEMA))
            self.acknowledged += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def wait_for_rows(self, rows: int) -> None:
        goal = self.acknowledged + rows
        wait_until(lambda: self.acknowledged >= goal, f"{rows} more rows are acknowledged")


def metric(cluster: MiniCluster, server: str, name: str) -> float:
    address = f"http://{cluster.web_address(server)}/metrics"
    with urllib.request.urlopen(address, timeout=within(60)) as answer:
        found = re.search(rf"^nyala_{name} (\S+)", answer.read().decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


@pytest.mark.timeout(560)
def test_leader_with_slow_disk_transfers_leadership_and_event_loop_never_syncs(tmp_path: Path):
    options = {"slow_log_backoff_ms": "3600000", "repair": "off"}
    with (
        MiniCluster(masters=1, tservers=3, options=options) as cluster,
        cluster.connect(timeout_ms=120_000) as client,
    ):
        table = client.create_table("t", SCHEMA, primary_key=["k"], replicas=3)
        writer = Writer(table)
        with writer.running():
            writer.wait_for_rows(50)
            old = leader(cluster, "t")
            pid = processes.running_pid(layout_of(cluster).server(old))
            assert pid is not None
            with injected(pid, SYNCS, "delay_enter=1000000", tmp_path / "syncs"):
                wait_until(lambda: leader(cluster, "t") != old, f"{old} transfers leadership")
                writer.wait_for_rows(200)
                wait_until(lambda: metric(cluster, old, "wal_disk_slow") == 1, "wal_disk_slow is 1")
                wait_until(
                    lambda: metric(cluster, old, "wal_round_ms") >= 500,
                    "wal_round_ms is 500 or more",
                )
                problem = f"tablet server {cluster.address(old)}: {SLOW}"
                wait_until(
                    lambda: any(problem in p for p in ksck(cluster).problems),
                    "ksck reports the slow disk",
                )
                others = [n for n in cluster.names if n.startswith("t") and n != old]
                assert not any(metric(cluster, n, "wal_disk_slow") for n in others)
            wait_until(lambda: metric(cluster, old, "wal_disk_slow") == 0, "wal_disk_slow is 0")
        threads = {int(line.split()[0]) for line in (tmp_path / "syncs").read_text().splitlines()}
        assert threads
        assert pid not in threads, "the event loop's thread made a sync"
        wait_ksck(cluster)
        wait_equal(cluster)
        assert table.scan().count() == writer.acknowledged
