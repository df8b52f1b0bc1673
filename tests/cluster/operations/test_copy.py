"""Tablet copies between server processes: under writes, with a killed source, and by command.

Chains of rows (linked_list.py) grow all the time, and are verified after each scenario, also in copied
tablets; at the end the checksums of all replicas are compared.
"""

import json
import shutil
import subprocess
import sys
from collections import Counter

import pyarrow as pa
import pytest

from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.common.ids import SYS_CATALOG, CommittedOperation, TabletId
from nyala.common.options import Options
from nyala.datadir import instance
from nyala.env.files import SystemFiles
from nyala.offline.copy import StoppedServer, copy_to_directory
from nyala.operate.membership import Membership
from nyala.tablet.files.replicated_ops import RowOp, WriteOp, encode
from nyala.tablet.tablet import Tablet
from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support import leading, linked_list
from tests.cluster.support.damage import figures
from tests.cluster.support.direct import Direct, refusal
from tests.cluster.support.ksck import wait_equal, wait_ksck
from tests.cluster.support.linked_list import LinkedList
from tests.cluster.support.small_disk import small_disk
from tests.cluster.support.workload import create, rows
from tests.waiting import wait_until, within

pytestmark = pytest.mark.full

ROWS = 100_000
"""Rows of the single tablet that is copied; the copy takes about six seconds."""
CHAIN_ROWS = 200_000
TABLETS = 5
"""Number of tablets; with four servers, one server has three of five."""
RATE_BYTES = 1_500_000
OVER = ("WAITING", "DONE", "FAILED", "CANCELLED")


@pytest.fixture(scope="module")
def four():
    """Four tablet servers: each tablet has one without a replica of it. Copies take seconds."""
    options = {
        "copy_rate_bytes": str(RATE_BYTES),
        "copy_retry_ms": "3000",
        "flush_bytes": "1000000",
        "repair": "off",  # else copies without an order would be deleted
    }
    with MiniCluster(tservers=4, options=options) as made:
        yield made
        wait_equal(made)


@pytest.fixture(scope="module")
def chains(four):
    """Chains that grow from the first test to the last."""
    with four.connect() as client:
        linked_list.fill(linked_list.create(client, "chains", TABLETS), CHAIN_ROWS)
    with LinkedList(four.connect, "chains", 1) as grown:
        yield grown
    assert grown.verify() > 100


class Servers:
    """Requests of an operator's tool to single servers."""

    def __init__(self, cluster, direct):
        self.cluster, self.direct = cluster, direct

    def ask(self, name, method, request):
        return self.direct.ask(self.cluster.address(name), method, request)

    def uuid(self, name):
        return self.ask(name, methods.SERVER_INFO, pb.ServerInfoRequest()).uuid

    def replica(self, name, tablet):
        found = self.ask(name, methods.LIST_TABLETS, pb.ListTabletsRequest()).tablets
        return next((t for t in found if t.report.tablet_id == tablet), None)

    def start(self, target, source, tablet, **more):
        request = pb.StartCopyRequest(
            destination_uuid=self.uuid(target),
            cluster_id=self.ask(target, methods.SERVER_INFO, pb.ServerInfoRequest()).cluster_id,
            tablet_id=tablet,
            source_uuid=self.uuid(source),
            source_address=self.cluster.address(source),
            **more,
        )
        return self.ask(target, methods.START_COPY, request).copy

    def progress(self, target, tablet):
        request = pb.CopyStatusRequest(tablet_ids=[tablet])
        return self.ask(target, methods.COPY_STATUS, request).copies[0]

    def replace(self, old, new, tablet):
        """Move a replica to a server that has a copy already; the copy is used."""
        connection = Connection(self.cluster.masters, ClientOptions(timeout_ms=60_000))
        try:
            move = Membership(connection.core, tablet)
            connection.run(move.move(self.cluster.address(old), self.cluster.address(new)))
            assert not any(step.startswith("copy ") for step in move.done), move.done
        finally:
            connection.close()

    def until_over(self, target, tablet):
        wait_until(lambda: self.progress(target, tablet).stage in OVER, "the copy is over", 120)
        return self.progress(target, tablet)


@pytest.fixture
def servers(four):
    with Direct() as direct:
        yield Servers(four, direct)


def filled(cluster, name, buckets=1):
    """A table; return client and table, and its first tablet with its leader."""
    client = cluster.connect()
    table = create(client, name, buckets)
    for first in range(0, ROWS, 20_000):
        numbers = list(range(first, first + 20_000))
        table.insert(rows("copied", numbers, numbers, "x" * 20)).raise_for_errors()
    (tablet, leader), *_ = leading.leaders(cluster, name).items()
    return client, table, tablet, leader


def server_without_replica(cluster, name, tablet):
    """Return the server without a replica of a table's tablet."""
    with cluster.connect() as client:
        (place,) = (p for p in client.table(name).tablets() if p.id == tablet)
    holders = {address for _, address in place.replicas}
    (found,) = (n for n in cluster.names if "tser" in n and cluster.address(n) not in holders)
    return found


@pytest.mark.row("S1.37")
def test_copy_under_writes_is_complete(four, servers, chains):
    client, table, tablet, leader = filled(four, "written")
    with client:
        target = server_without_replica(four, "written", tablet)
        servers.start(target, leader, tablet)
        written = 0
        while servers.progress(target, tablet).stage not in OVER:
            table.insert(rows("meanwhile", [written], [written])).raise_for_errors()
            written += 1
        progress = servers.until_over(target, tablet)
        assert progress.stage == "WAITING", progress
        assert progress.bytes_done == progress.bytes_total > 1_000_000
        assert written > 1, "writes continued during the copy"
        copy, original = servers.replica(target, tablet), servers.replica(leader, tablet)
        assert copy.report.role == "NON_PARTICIPANT"
        assert copy.last_index == progress.last_index <= original.last_index
        wait_until(
            lambda: servers.replica(target, tablet).rows >= ROWS, "the target has replayed the log"
        )
        four.kill(target)
        four.start(target)
        wait_until(
            lambda: (servers.replica(target, tablet) or pb.TabletStatus()).last_index
            == progress.last_index,
            "a copy continues after a restart of its server",
        )  # fmt: skip
        assert refusal(servers.start, target, leader, tablet) == "ALREADY_PRESENT"
    chains.verify()


@pytest.mark.row("S1.37")
def test_killed_source_leaves_no_partial_copy_and_another_source_is_used(four, servers, chains):
    client, _table, tablet, leader = filled(four, "killed")
    with client:
        target = server_without_replica(four, "killed", tablet)
        servers.start(target, leader, tablet)
        wait_until(
            lambda: servers.progress(target, tablet).bytes_done > 0, "the transfer has begun"
        )
        four.kill(leader)
        progress = servers.until_over(target, tablet)
        assert progress.stage == "FAILED", progress
        assert progress.error.code == "UNAVAILABLE"
        assert servers.replica(target, tablet) is None
        files = SystemFiles()
        directory = four.data_dir(target)
        assert files.list(f"{directory}/copy") == []
        assert not files.exists(f"{directory}/data/{tablet}")

        def another():
            now = leading.leader(four, "killed")
            return now if now != leader else None

        servers.start(target, wait_until(another, "another leads"), tablet)
        assert servers.until_over(target, tablet).stage == "WAITING"
        wait_until(lambda: servers.replica(target, tablet).rows == ROWS, "the target has all rows")
        four.start(leader)
    chains.verify()


def test_disk_full_during_copy_and_two_concurrent_copies_to_one_server(four, servers, chains):
    leaders = leading.leaders(four, "chains")
    lacking = {tablet: server_without_replica(four, "chains", tablet) for tablet in leaders}
    target, _ = Counter(lacking.values()).most_common(1)[0]
    first, second, *_ = (t for t, name in lacking.items() if name == target)
    with small_disk(f"{four.data_dir(target)}/copy"):
        servers.start(target, leaders[first], first)
        progress = servers.until_over(target, first)
        assert progress.stage == "FAILED", progress
        assert "No space left" in progress.error.message
        assert progress.bytes_total > progress.bytes_done
        assert servers.replica(target, first) is None
        assert SystemFiles().list(f"{four.data_dir(target)}/copy") == []
    chains.verify()
    leaders = leading.leaders(four, "chains")
    for tablet in (first, second):
        servers.start(target, leaders[tablet], tablet)
    stages = [servers.progress(target, t).stage for t in (first, second)]
    assert not {*stages} & {*OVER}, f"both copies are in progress: {stages}"
    for tablet in (first, second):
        assert servers.until_over(target, tablet).stage == "WAITING"
    for tablet in (first, second):
        servers.replace(leading.leaders(four, "chains")[tablet], target, tablet)
    chains.verify()
    wait_equal(four)


def test_replica_with_different_rows_is_named_by_checksum(four, servers, tmp_path):
    """Its files and its log are intact: only the rows show the difference."""
    client, _table, tablet, leader = filled(four, "differs")
    lacking = server_without_replica(four, "differs", tablet)
    victim = next(n for n in four.names if n not in (leader, lacking) and "tser" in n)
    folder = f"{four.data_dir(victim)}/data/{tablet}"
    wait_until(
        lambda: figures(four, victim, tablet, "differs").get("rowset_count"), "rows are flushed"
    )
    four.kill(victim)
    replace_rows(folder, str(tmp_path / "other"))
    four.start(victim)
    wait_ksck(four)
    command = [sys.executable, "-m", "nyala.cli.main", "cluster", "ksck", "--checksum"]
    done = subprocess.run(
        [*command, "--format", "json", "--masters", four.masters],
        capture_output=True, text=True, timeout=within(240), check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    [problem] = [p for p in answer["problems"] if tablet in p]
    assert f"tablet {tablet}: its replicas differ" in problem
    sums = {s["address"]: s for s in answer["checksums"] if s["tablet"] == tablet}
    other = sums.pop(four.address(victim))
    assert len({s["checksum"] for s in sums.values()}) == 1
    assert {s["rows"] for s in sums.values()} == {ROWS}
    assert other["rows"] == ROWS - 1
    assert other["checksum"] in problem
    with client:
        client.drop_table("differs")


def replace_rows(folder, scratch):
    """Replace a replica's files by files of the same cut without its first row."""
    files = SystemFiles()
    was = Tablet.open(files, folder)
    flush_point, schema = was.flush_point, was.info.schema
    held = (
        pa.Table.from_batches(was.view().scan(flush_point.stamp)).combine_chunks().to_batches()[0]
    )
    made = Tablet.create(files, scratch, was.info)
    ids = tuple(c.id for c in schema.columns)
    op = WriteOp(RowOp.INSERT, schema.version, ids, False, held.slice(1).serialize().to_pybytes())
    made.apply([CommittedOperation(flush_point.op, flush_point.stamp, encode(op))])
    flush = made.prepare_flush(flush_point)
    assert flush is not None
    flush()()
    for tablet in (was, made):
        tablet.close()
    shutil.rmtree(folder)
    shutil.move(scratch, folder)


@pytest.mark.row("S2.7", "S2.10")
def test_master_catalog_is_copied_into_directory_of_stopped_master(four, tmp_path):
    directory = str(tmp_path / "replacement")
    master = four.leader_master()
    with four.connect() as client:
        create(client, "catalogued", buckets=1)

    async def copy(env):
        return await copy_to_directory(
            StoppedServer(env, Options(), directory, "master"), SYS_CATALOG, four.address(master)
        )

    with Direct() as direct:
        progress = direct.run(copy(direct.env))
    assert progress.last.index > 0
    files = SystemFiles()
    found = instance.decode(files.read(f"{directory}/instance"), "instance")
    assert found.initialised
    assert found.cluster_id
    tablet = Tablet.open(files, f"{directory}/data/{TabletId(SYS_CATALOG)}")
    assert tablet.flush_point.op.index <= progress.last.index
    tablet.close()
