"""Services beside the data: web ports, look-ups through failover, clear errors at a deadline."""

import contextlib
import datetime as dt
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import InvalidArgument, OutcomeUnknown, TimedOut, Unavailable
from nyala.testing import MiniCluster, layout
from tests.cluster.support.ksck import wait_ksck
from tests.unit.cli.support.verbs import nyala as verb
from tests.waiting import within

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
    with urllib.request.urlopen(f"http://{address}{path}", timeout=within(60)) as answer:
        return answer.status, answer.read().decode()


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


@pytest.mark.full
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
    with pytest.raises(InvalidArgument, match="is the address of a tablet server"):
        nyala.connect(cluster.address("tserver-0"), timeout_ms=1_000)


def test_command_line_lists_the_cluster(cluster):
    with cluster.connect() as client:
        if "seen" not in client.tables():
            client.create_table("seen", SCHEMA, ["k"]).insert([{"k": 7, "v": "x"}])
        tablet = client.table("seen").tablets()[0].id
    wait_ksck(cluster)
    at = ("--masters", cluster.masters)
    assert "seen" in [t["table"] for t in listing("table", "list", *at)]
    assert tablet in verb("table", "describe", "seen", *at)[1], "ids are printed completely"
    assert verb("table", "scan", "seen", *at, "--format", "csv") == (0, "k,v\n7,x\n", "")
    asked = listing("sql", "select v, count(*) n from seen group by v", *at)
    assert asked == [{"v": "x", "n": 1}]
    status, out, _ = verb("cluster", "ksck", *at)
    assert (status, out.strip().splitlines()[-1]) == (0, "OK")
    status, out, err = verb("table", "describe", "nothing", *at)
    assert (status, out) == (5, "")
    assert "no table 'nothing'; the tables are:" in err
    assert verb("sql", "selec 1", *at)[0] == 2


def listing(*words: str) -> Any:
    status, out, err = verb(*words, "--format", "json")
    assert (status, err) == (0, "")
    return json.loads(out)


def test_tablets_of_a_table_are_listed_measured_and_found_by_key(cluster):
    at = ("--masters", cluster.masters)
    columns = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("v", pa.string())])
    ranges = nyala.Range(["t"], [(dt.datetime(2020, 1, 1), None)])
    with cluster.connect() as client:
        parts = nyala.Partition(hash=[nyala.Hash(["k"], 4)], range=ranges)
        table = client.create_table("spread", columns, ["k", "t"], parts)
        table.insert([{"k": 7, "t": dt.datetime(2020, 1, 2), "v": "x"}]).raise_for_errors()
        ids = {t.id for t in table.tablets()}
        client.create_journal("diary")
    wait_ksck(cluster)
    listed = listing("tablet", "list", "--table", "spread", *at)
    assert {t["tablet"] for t in listed} == ids
    assert all(t["replicas"].count(":") == 3 and t["leader"] in t["replicas"] for t in listed)
    every = listing("tablet", "list", *at)
    assert [t for t in every if t["table"] == "spread"] == listed
    assert [t["partition"] for t in every if t["table"] == "diary"] == ["journal"]
    sizes = listing("table", "statistics", "spread", *at)
    assert (sizes["rows"], sizes["silent"]) == (1, [])
    (full,) = [t for t in sizes["tablets"] if t["rows"]]
    assert 0 < full["bytes"] < full["replica_bytes"] <= sizes["replica_bytes"]
    (found,) = listing("table", "locate_row", "spread", '[7, "2020-01-02"]', *at)
    assert (found["tablet"], found["partition"]) == (full["tablet"], full["partition"])
    assert found["row_exists"] is True
    (other,) = listing("table", "locate_row", "spread", '{"t": "2020-01-03", "k": 7}', *at)
    assert (other["tablet"], other["row_exists"]) == (full["tablet"], False)
    with cluster.connect() as client:
        client.drop_journal("diary")


@pytest.mark.parametrize(
    ("key", "words", "status"),
    [
        ("[-1]", "no range partition of table 'ranged' covers the key", 5),
        ("[1, 2]", "the key of table 'ranged' has 1 values, none of them null: k (int64)", 2),
        ("null", "none of them null", 2),
        ('{"q": 1}', "in this order, or by name as a JSON object", 2),
        ('"noon"', "'noon' is not a valid int64", 2),
        ("0.5", "does not convert", 6),
        ("{", "is not valid JSON", 2),
    ],
)
def test_key_that_has_no_tablet_is_refused(cluster, key, words, status):
    with cluster.connect() as client:
        if "ranged" not in client.tables():
            parts = nyala.Partition(range=nyala.Range(["k"], [(0, None)]))
            client.create_table("ranged", SCHEMA, ["k"], parts)
    code, _, err = verb("table", "locate_row", "ranged", key, "--masters", cluster.masters)
    assert words in err
    assert code == status


def test_statistics_tell_which_tablets_they_lack(cluster):
    with cluster.connect() as client:
        table = client.create_table("silent", SCHEMA, ["k"], replicas=1)
        (tablet,) = table.tablets()
        (owner,) = cluster.leaders("silent").values()
    with down(cluster, owner):
        code, _, err = verb("table", "statistics", "silent", "--masters", cluster.masters)
    assert code == 1
    assert f"the sums lack 1 tablet whose leader does not answer: {tablet.id}" in err


def test_ksck_names_problems_and_exits_with_error(cluster):
    with cluster.connect() as client:
        client.create_table("watched", SCHEMA, ["k"])
    with down(cluster, "tserver-1"):
        status, out, _ = verb("cluster", "ksck", "--masters", cluster.masters)
    assert (status, out.strip().splitlines()[-1]) == (1, "FAILED")
    assert f"tablet server {cluster.address('tserver-1')} is unreachable" in out
    assert "table watched" in out
