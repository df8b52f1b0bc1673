"""A tablet's files under a running server: their sizes; damage is reported, its replica FAILED."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support import leading
from tests.cluster.support.damage import ROWS, SCHEMA, fetch, figures
from tests.cluster.support.direct import Direct
from tests.waiting import wait_until

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def cluster() -> Iterator[MiniCluster]:
    with MiniCluster(options={"flush_bytes": "1"}) as made:
        yield made


def report(cluster: MiniCluster, name: str, tablet: str) -> pb.TabletReport:
    with Direct() as direct:
        answer = direct.ask(cluster.address(name), methods.LIST_TABLETS, pb.ListTabletsRequest())
    (found,) = (t for t in answer.tablets if t.report.tablet_id == tablet)
    found_report: pb.TabletReport = found.report
    return found_report


def quiet(cluster: MiniCluster, name: str, tablet: str, table: str) -> dict[str, float]:
    """Wait until all rows are in files and maintenance has ended; return the metrics."""
    seen: dict[str, float] = {}

    def settled() -> dict[str, float] | None:
        nonlocal seen
        before, seen = seen, figures(cluster, name, tablet, table)
        return seen if before == seen and seen.get("memory_bytes") == 0 else None

    found = wait_until(settled, "all rows are flushed")
    assert found["rowset_count"] > 0
    return found


@pytest.mark.row("A16")
def test_flush_and_compaction_metrics_are_shown(cluster):
    with cluster.connect() as client:
        table = client.create_table("figures <b>", SCHEMA, ["k"])
        (place,) = table.tablets()
        leader = leading.leader(cluster, table.name)
        wrote = 0

        def merged() -> bool:
            nonlocal wrote
            table.upsert(ROWS[:100]).raise_for_errors()
            wrote += 100
            return figures(cluster, leader, place.id, table.name).get("compactions_total", 0) > 0

        wait_until(merged, "enough has been flushed for a merge")
        seen = quiet(cluster, leader, place.id, table.name)
        assert seen["live_versions"] == 100
        assert seen["ended_versions"] == wrote - 100
        assert seen["flushed_versions_total"] == wrote
        times = 1 + seen["compacted_versions_total"] / wrote
        assert seen["amplification_ratio"] == pytest.approx(times)
        assert times > 1
        assert 1 <= seen["depth_rowsets"] <= seen["rowset_count"]
        assert 4 <= seen["flushes_total"] <= wrote / 100
        for name in (
            "file_bytes",
            "history_seconds",
            "flush_seconds_total",
            "compaction_seconds_total",
        ):
            assert seen[name] > 0, name
        assert seen["log_bytes"] >= 0
        assert {"flush_score_ratio", "compaction_score_ratio"} <= set(seen)
        page = fetch(cluster, leader, "/tablets")
        assert f"<td>figures &lt;b&gt;</td><td>{place.id}</td><td>" in page
        assert f"<td>{wrote:,}</td>" in page
        assert 'href="/tablets"' in fetch(cluster, leader, "/")


def test_truncated_file_fails_one_replica_and_no_process(cluster):
    with cluster.connect() as client:
        table = client.create_table("cut", SCHEMA, ["k"])
        rows = [{"k": n, "v": f"row {n}", "n": n} for n in range(5000)]
        table.insert(rows).raise_for_errors()
        (place,) = table.tablets()
        leader = leading.leader(cluster, "cut")
        folder = Path(cluster.data_dir(leader)) / "data" / place.id
        quiet(cluster, leader, place.id, "cut")
        assert table.scan().to_arrow().num_rows == 5000  # every block is verified and in use
        data = max(folder.glob("*.dat"), key=lambda path: path.stat().st_size)
        os.truncate(data, 4096)
        seen = sorted(table.scan().to_arrow().to_pylist(), key=lambda r: r["k"])
        assert seen == rows
        wait_until(
            lambda: report(cluster, leader, place.id).state == "FAILED",
            "the replica is reported as FAILED",
        )
        found_report = report(cluster, leader, place.id)
        assert str(data.name) in found_report.error
        assert "cut short" in found_report.error
        assert cluster.running(leader)


@pytest.mark.parametrize("read", ["scan", "get", "write"])
def test_damage_fails_one_replica_without_losing_rows(cluster, read):
    with cluster.connect() as client:
        table = client.create_table(read, SCHEMA, ["k"])
        table.insert(ROWS).raise_for_errors()
        (place,) = table.tablets()
        leader = leading.leader(cluster, read)
        folder = Path(cluster.data_dir(leader)) / "data" / place.id
        quiet(cluster, leader, place.id, read)
        data = max(folder.glob("*.dat"), key=lambda path: path.stat().st_size)
        with open(
            data, "r+b"
        ) as file:  # the column blocks are first; each server maps its own file
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
            lambda: report(cluster, leader, place.id).state == "FAILED",
            "the replica is reported as FAILED",
        )
        error = report(cluster, leader, place.id).error
        assert str(data.name) in error
        assert cluster.running(leader)
        assert sorted(table.scan().to_arrow().to_pylist(), key=lambda r: r["k"]) == ROWS
