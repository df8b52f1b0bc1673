"""Services beside the data: web ports, look-ups through failover, clear errors at a deadline."""

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import InvalidArgument, OutcomeUnknown, TimedOut, Unavailable
from nyala.testing import MiniCluster, layout
from tests.cluster.support.ksck import wait_ksck

MASTERS = ("master-0", "master-1", "master-2")
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


@contextlib.contextmanager
def down(cluster: MiniCluster, *names: str) -> Iterator[None]:
    """Kill servers, and start them again at the end."""
    for name in names:
        cluster.kill(name)
    try:
        yield
    finally:
        for name in names:
            cluster.start(name, wait=False)
        wait_ksck(cluster)


def fetch(address: str, path: str) -> tuple[int, str]:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
        return answer.status, answer.read().decode()


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nyala.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_health_and_metrics_are_served_by_every_server(cluster):
    for name in cluster.names:
        status, body = fetch(cluster.web_address(name), "/healthz")
        assert (status, body.strip()) == (200, "ok"), name
        status, body = fetch(cluster.web_address(name), "/metrics")
        assert status == 200
        assert "nyala_" in body, name
        assert "nyala" in fetch(cluster.web_address(name), "/")[1]


@pytest.mark.row("S0.29")
def test_one_master_address_is_enough_through_failover(cluster):
    """A client with the address of one follower master finds the leader, also after a failover."""
    leader = cluster.leader_master()
    other = next(n for n in MASTERS if n != leader)
    with nyala.connect(cluster.address(other), timeout_ms=60_000) as client:
        assert set(client.masters.split(",")) == set(cluster.masters.split(","))
        table = client.create_table("before", SCHEMA, ["k"])
        with down(cluster, leader):
            made = client.create_table("during", SCHEMA, ["k"])
            made.insert([{"k": 1, "v": "a"}]).raise_for_errors()
            table.insert([{"k": 1, "v": "b"}]).raise_for_errors()
            assert {"before", "during"} <= set(client.tables())
            with nyala.connect(cluster.masters) as fresh:  # also the address of the dead one
                assert fresh.tables() == client.tables()


@pytest.mark.row("S0.29")
def test_call_times_out_with_clear_error_when_all_masters_are_down(cluster):
    with cluster.connect() as with_long_timeout, cluster.connect(2_000) as client:
        created = with_long_timeout.create_table("there", SCHEMA, ["k"])
        created.insert([{"k": 1, "v": "x"}]).raise_for_errors()
        with down(cluster, *MASTERS):
            late = "no leader master answered CreateTable within"
            with pytest.raises((TimedOut, OutcomeUnknown), match=late):
                client.create_table("never", SCHEMA, ["k"])
            with pytest.raises(Unavailable, match="no nyala master answers"):
                nyala.connect(cluster.masters, timeout_ms=1_500)
    with cluster.connect() as client:
        assert "never" not in client.tables()
        assert client.table("there").count() == 1


def test_known_tablets_are_written_and_read_without_any_master(cluster):
    """Masters are required to look up tablets, not to use known ones."""
    with cluster.connect() as client:
        table = client.create_table("known", SCHEMA, ["k"])
        table.insert([{"k": 1, "v": "x"}]).raise_for_errors()
        with down(cluster, *MASTERS):
            table.insert([{"k": 2, "v": "y"}]).raise_for_errors()
            assert table.scan(order=True).to_arrow().column("v").to_pylist() == ["x", "y"]


def test_invalid_addresses_are_refused_before_sending(cluster):
    for wrong in ("", "localhost", "127.0.0.1:port", "127.0.0.1:99999"):
        with pytest.raises(InvalidArgument):
            nyala.connect(wrong, timeout_ms=1_000)
    (free,) = layout.free_ports(1)
    with pytest.raises(Unavailable, match="no nyala master answers"):
        nyala.connect(f"127.0.0.1:{free}", timeout_ms=1_000)
    with pytest.raises(
        Unavailable, match="no nyala master answers"
    ):  # the address of a tablet server, not of a master
        nyala.connect(cluster.address("tserver-0"), timeout_ms=1_000)


def test_command_line_lists_the_cluster(cluster):
    with cluster.connect() as client:
        if "seen" not in client.tables():
            client.create_table("seen", SCHEMA, ["k"]).insert([{"k": 7, "v": "x"}])
        tablet = client.table("seen").tablets()[0].id
    wait_ksck(cluster)
    at = ("--masters", cluster.masters)
    listed = cli("table", "list", *at, "--format", "json")
    assert "seen" in [t["table"] for t in json.loads(listed.stdout)]
    described = cli("table", "describe", "seen", *at)
    assert tablet in described.stdout, "ids are printed completely"
    scanned = cli("table", "scan", "seen", *at, "--format", "csv")
    assert (scanned.returncode, scanned.stdout) == (0, "k,v\n7,x\n")
    asked = cli("sql", "select v, count(*) n from seen group by v", *at, "--format", "json")
    assert (json.loads(asked.stdout), asked.stderr) == ([{"v": "x", "n": 1}], "")
    checked = cli("cluster", "ksck", *at)
    assert (checked.returncode, checked.stdout.strip().splitlines()[-1]) == (0, "OK")
    missing = cli("table", "describe", "nothing", *at)
    assert (missing.returncode, missing.stdout) == (5, "")
    assert "no table 'nothing'; the tables are:" in missing.stderr
    assert cli("sql", "selec 1", *at).returncode == 2


def test_ksck_names_problems_and_exits_with_error(cluster):
    with cluster.connect() as client:
        client.create_table("watched", SCHEMA, ["k"])
    with down(cluster, "tserver-1"):
        found = cli("cluster", "ksck", "--masters", cluster.masters)
    assert (found.returncode, found.stdout.strip().splitlines()[-1]) == (1, "FAILED")
    assert f"tablet server {cluster.address('tserver-1')} is unreachable" in found.stdout
    assert "table watched" in found.stdout
