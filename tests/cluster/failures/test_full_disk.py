"""One server of three has a full disk: the others continue; it does not end or acknowledge, and recovers."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nyala.cli.main import app
from nyala.testing import MiniCluster
from tests.cluster.support.ksck import ksck, wait_equal, wait_ksck
from tests.cluster.support.restarts import all_equal
from tests.cluster.support.workload import create, rows
from tests.waiting import wait_until

FULL = "tserver-2"
DISK_BYTES = 48 << 20


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MiniCluster]:
    disk = tmp_path / FULL
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode:
        pytest.skip("a disk of limited size needs the right to mount one")
    try:
        with MiniCluster(
            dir=str(tmp_path), options={"wal_segment_mb": "1", "wal_reserve_mb": "2"}
        ) as made:
            yield made
            wait_equal(made)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Write until the disk is full; return the file that fills it."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as out:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    out.write(b"\xee" * size)
            except OSError:
                continue
    return filler


def doctor_names(cluster: MiniCluster, name: str) -> bool:
    """Return whether `nyala doctor` has a step for this server, which says to free space on its disk."""
    words = ["doctor", "--format", "json", "--masters", cluster.masters]
    steps = json.loads(CliRunner().invoke(app, words).stdout)["steps"]
    return any(
        step["name"].startswith("mend-")
        and cluster.address(name) in step["finding"]
        and "free space on its disk" in step["finding"]
        for step in steps
    )


@pytest.mark.timeout(580)
def test_full_disk_affects_only_its_server(cluster):
    disk = Path(cluster.data_dir(FULL))
    with cluster.connect() as client:
        table = create(client, "t")
        table.upsert(rows("a", list(range(100)), list(range(100)))).raise_for_errors()
        leading = [n for n in cluster.leaders("t").values() if n == FULL]
        filler = fill(disk)
        assert os.statvfs(disk).f_bavail == 0
        blob = "x" * 2000
        for n in range(40):  # 8 MB: far over what the log of the full disk has preallocated
            table.upsert(rows("b", list(range(100 * n, 100 * n + 100)), [n] * 100, blob))
        assert table.scan(where="owner = 'b'").count() == 4_000
        named = f"tablet server {cluster.address(FULL)}: the log cannot grow"
        wait_until(
            lambda: any(p.startswith(named) for p in ksck(cluster).problems),
            "ksck reports the server with the full disk",
        )
        wait_until(
            lambda: doctor_names(cluster, FULL), "doctor names the server with the full disk"
        )
        print(f"the full server led {len(leading)} of {len(cluster.leaders('t'))} tablets")
        assert cluster.running(FULL)
        found = table.scan(["owner", "n", "v"], "owner = 'a'").to_arrow()
        assert sorted(found.column("v").to_pylist()) == list(range(100))
        cluster.kill(FULL)
        filler.unlink()
        cluster.start(FULL, wait=False)
        wait_ksck(cluster)
        wait_until(lambda: all_equal(cluster), "the server with the full disk has all entries", 120)
        for name in ("tserver-0", "tserver-1"):
            cluster.kill(name)
            assert table.scan(where="owner = 'b'").count() == 4_000
            assert table.scan(where="owner = 'a'").count() == 100
            cluster.start(name, wait=False)
            wait_ksck(cluster)
