"""Three servers, three replicas: one that cannot recover is replaced on its own server by the masters."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support import leading
from tests.cluster.support.damage import ROWS, SCHEMA, figures
from tests.cluster.support.direct import Direct
from tests.cluster.support.ksck import wait_equal, wait_ksck
from tests.waiting import wait_until

pytestmark = pytest.mark.full

OPTIONS = {
    "member_failed_after_ms": "2000",
    "repair_interval_ms": "200",
    "tserver_unresponsive_ms": "2000",
    "flush_bytes": "1",
    "wal_segment_mb": "1",
    "wal_retain_mb": "2",
    "wal_retain_for_peers_mb": "0",
}
PADDING = "x" * 20_000


@pytest.fixture(scope="module")
def three() -> Iterator[MiniCluster]:
    with MiniCluster(masters=1, tservers=3, options=OPTIONS) as made:
        yield made


def filled(cluster: MiniCluster, name: str) -> tuple[str, str]:
    """Make a table whose rows are in files; return its tablet and a server that does not lead it."""
    with cluster.connect() as client:
        table = client.create_table(name, SCHEMA, ["k"])
        table.insert(ROWS).raise_for_errors()
        (place,) = table.tablets()
    leader = leading.leader(cluster, name)
    follower = next(n for n in cluster.names if n.startswith("tserver") and n != leader)

    def in_files() -> bool:
        seen = figures(cluster, follower, place.id, name)
        return seen.get("live_versions") == len(ROWS) and seen.get("memory_bytes") == 0

    wait_until(in_files, f"{follower} has flushed {name}")
    return place.id, follower


def filled_journal(cluster: MiniCluster, name: str, server: str) -> str:
    """Make a journal of one entry that is in files of a server; return its tablet."""
    with cluster.connect() as client:
        journal = client.create_journal(name)
        journal.log("a").append(b"entry")
        tablet = journal.location().id

    def in_files() -> bool:
        seen = figures(cluster, server, tablet, name)
        return seen.get("journal_items") == 1 and seen.get("memory_bytes") == 0

    wait_until(in_files, f"{server} has flushed {name}")
    return tablet


def rows(cluster: MiniCluster, name: str) -> list[dict[str, object]]:
    with cluster.connect() as client:
        found = client.table(name).scan().to_arrow().to_pylist()
    return sorted(found, key=lambda r: r["k"])


def lacks(cluster: MiniCluster, leader: str, tablet: str) -> bool:
    """Return whether a member lacks entries that the leader's log no longer has."""
    with Direct() as direct:
        request = pb.ListTabletsRequest(tablet_ids=[tablet])
        (found,) = direct.ask(cluster.address(leader), methods.LIST_TABLETS, request).tablets
    return any(peer.needs_copy for peer in found.peers)


@pytest.mark.parametrize("loss", ["file", "log"])
def test_replica_with_lost_data_is_replaced_on_its_own_server(three, loss):
    tablet, follower = filled(three, loss)
    journal = filled_journal(three, f"{loss} of a journal", follower)
    three.kill(follower)
    try:
        directory = Path(three.data_dir(follower))
        if loss == "log":
            shutil.rmtree(directory / "wal")
        else:
            for group, pattern in ((tablet, "*.dat"), (journal, "*.jnl")):
                files = (directory / "data" / group).glob(pattern)
                os.truncate(max(files, key=lambda p: p.stat().st_size), 64)
    finally:
        three.start(follower, wait=False)
    wait_ksck(three)
    wait_equal(three)
    assert rows(three, loss) == ROWS
    with three.connect() as client:
        (entry,) = client.journal(f"{loss} of a journal").log("a").read()
    assert entry.data == b"entry"


def test_server_that_missed_more_than_the_retained_log_becomes_healthy(three):
    tablet, follower = filled(three, "missed")
    leader = leading.leader(three, "missed")
    three.kill(follower)
    try:
        with three.connect() as client:
            table = client.table("missed")
            begin, batches = 1000, 0

            def released() -> bool:
                """Write until the leader has released the entries that the other one lacks."""
                nonlocal batches
                more = [{"k": begin + n, "v": PADDING, "n": batches} for n in range(50)]
                table.upsert(more).raise_for_errors()
                batches += 1
                return lacks(three, leader, tablet)

            wait_until(released, "the log no longer has what the stopped server lacks")
    finally:
        three.start(follower, wait=False)
    wait_ksck(three)
    wait_equal(three)
    assert len(rows(three, "missed")) == len(ROWS) + 50
