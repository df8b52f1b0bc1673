"""Loss of all masters of a cluster with certificates: what is acknowledged or revoked before stays so."""

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import NyalaError
from nyala.datadir import instance
from nyala.security import issue
from nyala.security.principal import AccessRole, server_name
from nyala.testing import MiniCluster, layout
from tests.cluster.support.commands import run
from tests.waiting import wait_until, within

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

ACCOUNTS = list(range(6))
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
MASTERS = ("master-0", "master-1", "master-2")
OPTIONS = {"tserver_unresponsive_ms": "2000"}


class Transfers:
    """A thread that moves money between two tables by transactions until the masters are gone."""

    def __init__(self, cluster):
        with cluster.connect() as client:
            self.acknowledged = balances(client, "left")
        self.tried, self.committed = self.acknowledged, 0
        self._cluster = cluster
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        with self._cluster.connect(timeout_ms=5_000) as client:
            left, right = client.table("left"), client.table("right")
            while True:
                key = self.committed % len(ACCOUNTS)
                self.tried = self.acknowledged | {key: self.acknowledged[key] - 1}
                try:
                    with client.transaction() as txn:
                        left.upsert([{"k": key, "v": self.tried[key]}], txn=txn)
                        right.upsert([{"k": key, "v": 200 - self.tried[key]}], txn=txn)
                except NyalaError:
                    return
                self.acknowledged, self.committed = self.tried, self.committed + 1

    def wait(self, count):
        wait_until(lambda: self.committed >= count, f"{count} transfers are committed")

    def join(self):
        self._thread.join(within(60))
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(3, 3, options=OPTIONS, secure=True) as made:
        yield made


def words_of(cluster, servers, *more):
    found = layout.load(cluster.dir)
    assert found is not None
    first = found.server("master-0")
    return [
        "master", "unsafe_rebuild", *[cluster.address(s) for s in servers], "--dir", first.dir,
        "--address", first.address, "--peer-address", first.peer_address,
        "--master-addresses", cluster.masters, *more,
    ]  # fmt: skip


def lose_masters(cluster):
    for name in MASTERS:
        if cluster.running(name):
            cluster.kill(name)
        shutil.rmtree(cluster.data_dir(name), ignore_errors=True)


def start_rebuilt(cluster):
    """Make the certificate of the new master, and start it."""
    folder = cluster.data_dir("master-0")
    made = instance.decode(Path(folder, "instance").read_bytes(), folder)
    hosts, name = ["127.0.0.1", "localhost"], server_name("master", made.uuid)
    issue.local_server(f"{cluster.dir}/certs", f"{folder}/certs", name, hosts, signs=True)
    cluster.start("master-0", wait=False)
    cluster.wait_healthy()


def balances(client, name):
    return {r["k"]: r["v"] for r in client.table(name).scan().to_arrow().to_pylist()}


def check_transfers(cluster, transfers):
    """Check that each transfer took effect in both tables or in none, and those that were acknowledged."""
    with cluster.connect() as client:
        left = wait_until(lambda: balances(client, "left"), "the tables can be read")
        right = balances(client, "right")
        assert {k: 200 - v for k, v in right.items()} == left
        assert left in (transfers.acknowledged, transfers.tried)
        for table in ("left", "right"):  # nothing stays prepared
            client.table(table).upsert([{"k": -1, "v": 0}]).raise_for_errors()
            client.table(table).delete([{"k": -1}]).raise_for_errors()


@pytest.mark.row("A21")
def test_rebuilt_catalog_keeps_revocations_and_all_or_nothing_of_each_transaction(cluster):
    ann = issue.user(f"{cluster.dir}/certs", f"{cluster.dir}/ann", "ann", AccessRole.READER)
    assert run(cluster, "cert", "revoke", "ann").returncode == 0
    spread = nyala.Partition(hash=[nyala.Hash(["k"], 2)])
    with cluster.connect() as client:
        for name in ("left", "right"):
            table = client.create_table(name, SCHEMA, ["k"], spread)
            table.upsert([{"k": k, "v": 100} for k in ACCOUNTS]).raise_for_errors()
        for name in ("altered", "recallable"):
            client.create_table(name, SCHEMA, ["k"], replicas=3)
        client.table("altered").alter().rename_column("v", "w").commit()
        client.drop_table("recallable", reserve_seconds=3_600)
    tservers = [n for n in cluster.names if n.startswith("tserver")]
    wait_until(
        lambda: all(Path(cluster.data_dir(s), "revoked").exists() for s in tservers),
        "the tablet servers know of the revocation",
    )
    transfers = Transfers(cluster)
    transfers.wait(20)
    lose_masters(cluster)
    plan = run(cluster, *words_of(cluster, tservers, "--dry-run"))
    assert plan.returncode == 0, plan.stderr
    assert "users' accounts, join tokens, grants" in plan.stderr
    assert "1 revocations of certificates are kept" in plan.stderr
    assert "recallable" in plan.stdout, "a dropped table whose tablets are there is a table again"

    both = [
        subprocess.Popen(
            [sys.executable, "-m", "nyala", *words_of(cluster, tservers, "--yes")],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    ended = [(p.communicate(timeout=within(120))[1], p.returncode) for p in both]
    assert sorted(status == 0 for _, status in ended) == [False, True], ended
    start_rebuilt(cluster)
    transfers.join()
    check_transfers(cluster, transfers)
    refused = run(cluster, "table", "list", env=ann.variables)
    assert (refused.returncode != 0, "revoked" in refused.stderr) == (True, True), refused
    assert "ann" in run(cluster, "cert", "revoked").stdout
    with cluster.connect() as client:
        assert client.tables() == ["altered", "left", "recallable", "right"]
        client.table("altered").upsert([{"k": 1, "w": 1}]).raise_for_errors()


@pytest.mark.row("A21")
def test_rebuild_that_is_killed_or_lacks_a_server_is_repeated_and_the_server_returns(cluster):
    tservers = ["tserver-0", "tserver-1"]
    transfers = Transfers(cluster)
    transfers.wait(10)
    cluster.kill("tserver-2")  # together with the masters: tablets that it led have no leader
    lose_masters(cluster)
    directory = Path(cluster.data_dir("master-0"))
    begun = subprocess.Popen(
        [sys.executable, "-m", "nyala", *words_of(cluster, tservers, "--yes", "--force")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(
        lambda: (directory.exists() and any(directory.iterdir())) or begun.poll() is not None,
        "it writes", poll_s=0.001,
    )  # fmt: skip
    begun.kill()
    begun.wait()
    again = run(cluster, *words_of(cluster, tservers, "--yes", "--force"))
    assert (again.returncode, "is not empty" in again.stderr) == (2, True), again.stderr
    shutil.rmtree(directory)

    def planned():
        found = run(cluster, *words_of(cluster, tservers, "--dry-run"))
        assert found.returncode == 0, found.stderr
        return found if "whether another tablet commits it" not in found.stderr else None

    plan = wait_until(planned, "each tablet has a leader that answers")
    assert "members on servers that were not asked" in plan.stderr
    lacking = run(cluster, *words_of(cluster, tservers, "--yes"))
    assert "--force accepts the losses" in lacking.stderr
    done = run(cluster, *words_of(cluster, tservers, "--yes", "--force"))
    assert done.returncode == 0, done.stderr
    start_rebuilt(cluster)
    cluster.start("tserver-2")
    transfers.join()
    check_transfers(cluster, transfers)
    only = ("--masters", cluster.address("master-0"))
    wait_until(lambda: run(cluster, "cluster", "ksck", *only).returncode == 0, "ksck is OK")
