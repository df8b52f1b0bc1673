"""`nyala cluster rebalance` on real servers: added ones get their part under writes, also after kill -9."""

import json
import signal
import subprocess
import sys

import pyarrow as pa
import pytest

import nyala
from nyala.testing import MiniCluster
from tests.cluster.support.ksck import wait_ksck
from tests.cluster.support.workload import Workload, create
from tests.waiting import wait_until, within

pytestmark = pytest.mark.full

ADDED = ("tserver-3", "tserver-4")
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture(scope="module")
def cluster():
    """Five tablet servers, two of which stopped before there was any table and run since."""
    with MiniCluster(tservers=5, options={"tserver_unresponsive_ms": "2000"}) as made:
        for name in ADDED:
            made.stop(name)
        wait_until(lambda: states(made).count("ALIVE") == 3, "two are not alive")
        with made.connect() as client:
            create(client, "written")
            for name, tablets in (("large", 8), ("small", 3)):
                parts = nyala.Partition(hash=[nyala.Hash(["k"], tablets)])
                table = client.create_table(name, SCHEMA, ["k"], parts)
                table.upsert([{"k": k, "v": str(k)} for k in range(5_000)]).raise_for_errors()
            client.create_journal("entries")
        for name in ADDED:
            made.start(name)
        yield made


def words(cluster, *more):
    return [
        sys.executable,
        "-m",
        "nyala",
        "cluster",
        "rebalance",
        "--masters",
        cluster.masters,
        *more,
    ]


def rebalance(cluster, *more):
    done = subprocess.run(
        words(cluster, *more), capture_output=True, text=True, timeout=within(300)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def states(cluster):
    listed = [sys.executable, "-m", "nyala", "tserver", "list", "--masters", cluster.masters]
    return subprocess.run(listed, capture_output=True, text=True, check=False).stdout


def loads(found):
    return [server["replicas"] for server in found["servers"]]


@pytest.mark.row("A19")
def test_added_servers_get_their_part_under_writes_though_the_command_is_killed(cluster):
    before = json.loads(rebalance(cluster, "--dry-run", "--format", "json").stdout)
    assert before["planned"]
    assert sorted(loads(before))[:2] == [0, 0]
    with Workload(cluster.connect, "written", 1) as workload:
        killed = subprocess.Popen(words(cluster), stderr=subprocess.PIPE, text=True)
        assert killed.stderr is not None, "it is a pipe"
        assert "move a replica of" in killed.stderr.readline()
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        wait_ksck(cluster)
        found = json.loads(rebalance(cluster, "--format", "json").stdout)
    assert (found["failed"], found["waiting"]) == ([], [])
    assert max(loads(found)) - min(loads(found)) <= 1
    leaders = [server["leaders"] for server in found["servers"]]
    assert max(leaders) - min(leaders) <= 2
    wait_ksck(cluster)
    with cluster.connect() as client:
        workload.verify(client.table("written").scan().to_arrow())
        for name in ("large", "small"):
            assert client.table(name).count() == 5_000
    again = json.loads(rebalance(cluster, "--format", "json").stdout)
    assert [m for m in again["moves"] if "leader" not in m] == []


def test_cluster_with_a_dead_server_is_left_alone_with_the_reason(cluster):
    cluster.kill("tserver-4")
    try:
        wait_until(lambda: states(cluster).count("ALIVE") == 4, "the masters notice")
        refused = subprocess.run(
            words(cluster), capture_output=True, text=True, timeout=within(120)
        )
        assert refused.returncode != 0
        assert "does not run" in refused.stderr
        assert "nyala tserver state enter_maintenance" in refused.stderr
    finally:
        cluster.start("tserver-4")
    unknown = subprocess.run(
        words(cluster, "nothing"), capture_output=True, text=True, timeout=within(120)
    )
    assert "no table or journal 'nothing'" in unknown.stderr
