"""kill -9 of every server at once, repeatedly, during flushes and with torn log tails."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from nyala.testing import MiniCluster
from nyala.wal.segments.scan import scan
from tests.cluster.kill_cycles import OPTIONS
from tests.cluster.support.ksck import wait_equal, wait_ksck
from tests.cluster.support.restarts import all_equal
from tests.cluster.support.workload import Workload, create, rows
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[MiniCluster]:
    with MiniCluster(options=OPTIONS) as made:
        yield made
        wait_equal(made)


def kill_all(cluster: MiniCluster) -> None:
    for name in cluster.names:
        cluster.kill(name)


def start_all(cluster: MiniCluster) -> None:
    for name in cluster.names:
        cluster.start(name, wait=False)
    wait_ksck(cluster)


def last_segment(cluster: MiniCluster, name: str) -> tuple[Path, int]:
    """Return the log segment that was written last, and where its last record ends."""
    path = max(Path(cluster.data_dir(name), "wal").glob("*.wal"))
    return path, scan(path.read_bytes(), str(path), int(path.stem)).end


@pytest.mark.full
def test_kill_of_all_servers_under_load_keeps_acknowledged_writes(cluster):
    """Three rounds with continuous flushes (64 KiB) and the bytes of a torn write after each log."""
    with cluster.connect() as client:
        create(client, "load")
    with Workload(cluster.connect, "load", 7) as workload:
        for round_ in range(3):
            goal = workload.acknowledged + 400

            def went_on(goal: int = goal) -> bool:
                workload.check()
                return workload.acknowledged >= goal

            wait_until(went_on, f"{goal} operations", 240)
            kill_all(cluster)
            for number, name in enumerate(cluster.names):
                path, end = last_segment(cluster, name)
                with open(path, "r+b") as log:  # half of a record that had not been synced
                    log.seek(end)
                    log.write(bytes(range(1, 20 + 7 * number + round_)))
            start_all(cluster)
    workload.check()
    flushed = [*Path(cluster.dir).glob("tserver-*/data/*/*")]
    assert len(flushed) > 12, "the small flush_bytes puts rowsets on disk"
    with cluster.connect() as client:
        assert workload.verify(client.table("load").scan().to_arrow()) > 1000
    wait_until(lambda: all_equal(cluster), "equal replicas")


def test_torn_tail_on_one_server_loses_nothing(cluster):
    """The last bytes of a log are lost: the two others have the rows, and the third fetches them."""
    with cluster.connect() as client:
        table = create(client, "torn", buckets=1)
        table.upsert(rows("a", list(range(500)), list(range(500)))).raise_for_errors()
    wait_until(lambda: all_equal(cluster), "equal replicas")
    for victim in ("tserver-0", "tserver-1", "tserver-2"):
        kill_all(cluster)
        path, end = last_segment(cluster, victim)
        with open(path, "r+b") as log:
            log.truncate(end - 5)
        start_all(cluster)
        with cluster.connect() as client:
            found = client.table("torn").scan(order=True).to_arrow()
            assert found.column("v").to_pylist() == list(range(500))
    with cluster.connect() as client:
        client.table("torn").upsert(rows("a", [1], [-1])).raise_for_errors()
    wait_until(lambda: all_equal(cluster), "equal replicas")


def test_table_ids_and_sequences_survive_restart(cluster):
    """DDL before a kill of all servers is durable; a client from before continues to write."""
    with cluster.connect() as client:
        table = create(client, "kept", buckets=2)
        table.insert(rows("x", [1, 2], [10, 20])).raise_for_errors()
        client.create_table("dropped", pa.schema([("k", pa.int64())]), ["k"])
        client.drop_table("dropped")
        ids = {name: client.describe(name).id for name in client.tables()}
        kill_all(cluster)
        start_all(cluster)
        assert {name: client.describe(name).id for name in client.tables()} == ids
        assert "dropped" not in ids
        again = table.insert(rows("x", [2, 3], [99, 30]))
        assert again.errors.column("code").to_pylist() == ["already_present"]
        found = table.scan(order=True).to_arrow().to_pylist()
        assert [(r["n"], r["v"]) for r in found] == [(1, 10), (2, 20), (3, 30)]
