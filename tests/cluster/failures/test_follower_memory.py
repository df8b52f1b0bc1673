"""A real follower whose flushes fail stays within its memory budget; writes continue, and it catches up."""

import re
import shutil
import urllib.request
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from nyala.testing import MiniCluster, processes
from tests.cluster.support.ksck import ksck, wait_equal, wait_ksck
from tests.cluster.support.layouts import layout_of
from tests.cluster.support.leading import leader
from tests.cluster.support.small_disk import small_disk
from tests.waiting import wait_until, within

pytestmark = pytest.mark.full

MIB = 1 << 20
BUDGET = 64 * MIB
OPTIONS = {
    "memory_budget_bytes": str(BUDGET),
    "flush_bytes": str(8 * MIB),
    "flush_log_bytes": str(8 * MIB),
    "repair": "off",
}
ROW_BYTES, BATCH, BATCHES = 10_000, 1_000, 40
WRITTEN = ROW_BYTES * BATCH * BATCHES
LIMIT = 4 * BUDGET
"""Growth of a follower. Within its budget it grows by up to 180 MiB, since the allocator keeps what failed
flushes and entries released; one that keeps all that was written grows by `WRITTEN` (381 MiB) at least."""
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), ("v", pa.binary())])


def anonymous_bytes(cluster: MiniCluster, name: str) -> int:
    """Return the anonymous memory of a server in bytes."""
    pid = processes.running_pid(layout_of(cluster).server(name))
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def figures(cluster: MiniCluster, name: str) -> dict[str, float]:
    """Return a server's account of its memory, by part."""
    with urllib.request.urlopen(
        f"http://{cluster.web_address(name)}/metrics", timeout=within(30)
    ) as answer:
        text = answer.read().decode()
    parts = re.findall(r'^nyala_memory_part_bytes\{part="(\w+)"\} (\S+)', text, re.MULTILINE)
    return {part: float(value) for part, value in parts}


@pytest.mark.timeout(300)
def test_follower_that_cannot_flush_stays_within_budget_and_catches_up(tmp_path):
    rng = np.random.default_rng(1)
    with (
        MiniCluster(masters=1, tservers=3, options=OPTIONS) as cluster,
        cluster.connect() as client,
    ):
        table = client.create_table("t", SCHEMA, primary_key=["k"], replicas=3)
        table.upsert(pa.table({"k": [0], "v": [b"x"]}, schema=SCHEMA))
        wait_equal(cluster)
        leading = leader(cluster, "t")
        victim = next(n for n in cluster.names if n.startswith("tserver") and n != leading)
        folder = Path(cluster.data_dir(victim)) / "data" / table.tablets()[0].id
        files = shutil.copytree(folder, tmp_path / "files")
        before = anonymous_bytes(cluster, victim)
        with small_disk(str(folder)):  # from now on flushes fail on this server
            shutil.copytree(files, folder, dirs_exist_ok=True)
            for begin in range(0, BATCH * BATCHES, BATCH):
                keys = np.arange(begin, begin + BATCH)
                blob = rng.bytes(ROW_BYTES - 8)
                values = pa.array([blob + int(k).to_bytes(8) for k in keys], pa.binary())
                table.upsert(pa.table({"k": keys, "v": values}, schema=SCHEMA))
            used = figures(cluster, victim)
            assert set(used) == {"rows", "entries", "sessions", "writes", "scans", "copies"}
            assert BUDGET // 2 < sum(used.values()) < BUDGET + 24 * MIB, used
            grown = anonymous_bytes(cluster, victim) - before
            assert grown < LIMIT, f"{grown >> 20} MiB; {WRITTEN >> 20} were written"
            problems = "; ".join(ksck(cluster).problems)
            assert "memory_budget_bytes" in problems
            assert cluster.address(victim) in problems
        wait_ksck(cluster)
        wait_equal(cluster)
        wait_until(
            lambda: sum(figures(cluster, victim).values()) < BUDGET,
            "memory is below the budget again",
        )
        assert table.scan().count() == BATCH * BATCHES
