"""Damage in a tablet's files under a running server: told with its file; its replica is FAILED."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.direct import Direct
from tests.waiting import wait_until

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("n", pa.int64())])
ROWS = [{"k": n, "v": f"row {n}", "n": n} for n in range(500)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[MiniCluster]:
    with MiniCluster(options={"flush_bytes": "1"}) as made:
        yield made


def report(cluster: MiniCluster, name: str, tablet: str) -> pb.TabletReport:
    with Direct() as direct:
        answer = direct.ask(cluster.address(name), methods.LIST_TABLETS, pb.ListTabletsRequest())
    (found,) = (t for t in answer.tablets if t.report.tablet_id == tablet)
    told: pb.TabletReport = found.report
    return told


@pytest.mark.parametrize("read", ["scan", "get", "write"])
def test_damage_fails_one_replica_and_costs_nobody_a_row(cluster, read):
    with cluster.connect() as client:
        table = client.create_table(read, SCHEMA, ["k"])
        table.insert(ROWS).raise_for_errors()
        (place,) = table.tablets()
        (leader,) = cluster.leaders(read).values()
        folder = Path(cluster.data_dir(leader)) / "data" / place.id
        wait_until(lambda: any(folder.glob("*.dat")), "the rows are in files")
        data = max(folder.glob("*.dat"), key=lambda path: path.stat().st_size)
        with open(data, "r+b") as file:  # the column blocks come first; each server maps its own
            size = data.stat().st_size
            for at in range(64, size - 600, 64):
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 4]))
        if read == "scan":
            assert sorted(table.scan().to_arrow().to_pylist(), key=lambda r: r["k"]) == ROWS
        elif read == "get":
            assert table.get({"k": 7}) == ROWS[7]
        else:
            table.update([{"k": 7, "n": 7}]).raise_for_errors()  # it takes `v` from the file
        wait_until(
            lambda: report(cluster, leader, place.id).state == "FAILED", "the damage is told", 20
        )
        error = report(cluster, leader, place.id).error
        assert str(data.name) in error
        assert cluster.running(leader)
        assert sorted(table.scan().to_arrow().to_pylist(), key=lambda r: r["k"]) == ROWS
