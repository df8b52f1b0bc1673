"""All masters are lost with their data: a new catalog is rebuilt from what the tablet servers have."""

import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import nyala as product
from nyala.common.errors import HistoryGone, NyalaError
from nyala.testing import MiniCluster, layout
from tests.cluster.support.ksck import ksck, wait_equal
from tests.unit.cli.support.verbs import nyala
from tests.waiting import wait_until, within

pytestmark = pytest.mark.full

OPTIONS = {
    "member_failed_after_ms": "5000",
    "repair_interval_ms": "100",
    "tserver_unresponsive_ms": "1000",
    "flush_bytes": "100000",
}
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("gone", pa.string())])
PARTS = product.Partition(
    hash=[product.Hash(["k"], 2)], range=product.Range(["k"], [(0, 100), (100, 200), (200, 300)])
)
MASTERS, TSERVERS = 3, 4


@pytest.fixture(scope="module")
def lost():
    with MiniCluster(masters=MASTERS, tservers=TSERVERS, options=OPTIONS) as made:
        yield made


def peer(cluster, name):
    """Return the address of a server's peer port."""
    found = layout.load(cluster.dir)
    assert found is not None
    return found.server(name).peer_address


def filled(client, name):
    table = client.create_table(name, SCHEMA, ["k"], PARTS)
    table.upsert([{"k": k, "v": k, "gone": "x"} for k in range(0, 300, 3)]).raise_for_errors()
    return table


def keys(scan):
    return sorted(row["k"] for row in scan.to_arrow().to_pylist())


def rebuild(cluster, *words):
    """Run the command as a process of its own, which holds the lock of the directory while it runs."""
    servers = [cluster.address(f"tserver-{number}") for number in range(TSERVERS - 1)]
    done = subprocess.run(
        [sys.executable, "-m", "nyala", "master", "unsafe_rebuild", *servers,
         "--dir", cluster.data_dir("master-0"), "--address", cluster.address("master-0"),
         "--peer-address", peer(cluster, "master-0"), "--master-addresses", cluster.masters, *words],
        capture_output=True, text=True, timeout=within(120), check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.row("A21")
def test_catalog_is_rebuilt_from_tablet_servers_after_loss_of_all_masters(lost):
    cluster = lost
    with cluster.connect() as client:
        plain = filled(client, "plain")
        then = client.now()
        plain.upsert([{"k": 3, "v": -3}]).raise_for_errors()
        altered = filled(client, "altered")
        altered.alter().add_range(300, 400).commit()
        log = client.create_journal("events").log("a")
        entry = log.append(b"one", expected=0)
        wait_equal(cluster)
        before = client.now()
        cluster.kill("tserver-2")  # lags from here on
        altered.alter().rename_column("v", "w").drop_column("gone").drop_range(100, 200).commit()
        altered = client.table("altered")
        altered.upsert([{"k": 350, "w": 1}]).raise_for_errors()
        after = client.now()
        altered.upsert([{"k": 350, "w": 2}]).raise_for_errors()
    for number in range(MASTERS):
        cluster.kill(f"master-{number}")
        shutil.rmtree(cluster.data_dir(f"master-{number}"))
    cluster.kill("tserver-3")
    shutil.rmtree(cluster.data_dir("tserver-3"))
    cluster.start("tserver-2", wait=False)
    directory = Path(cluster.data_dir("master-0"))

    dry = functools.partial(rebuild, cluster, "--dry-run", "--format", "json")
    status, out, err = wait_until(lambda: answered(dry()), "all replicas are open")
    assert status == 0, err
    planned = json.loads(out)
    assert planned["refused"] == []
    assert "members on servers that were not asked" in err
    found = {t["name"]: t for t in planned["tables"]}
    assert {n: (t["tablets"], t["dropped"], t["empty"]) for n, t in found.items()} == {
        "plain": (6, 0, 0), "altered": (6, 2, 0), "events": (1, 0, 0),
    }  # fmt: skip
    assert not directory.exists()
    assert rebuild(cluster, "--yes")[0] == 1, "losses need --force"
    assert not directory.exists()
    directory.mkdir()
    (directory / "old").write_text("a file")
    status, _, err = rebuild(cluster, "--yes", "--force")
    assert (status, "is not empty (it holds old)" in err) == (2, True), err
    (directory / "old").unlink()
    status, _, err = rebuild(cluster, "--yes", "--force")
    assert status == 0, err
    status, _, err = rebuild(cluster, "--yes", "--force")
    assert (status, "if it has a catalog, start the master" in err) == (2, True), err

    cluster.start("master-0", wait=False)
    for name in ("master-1", "master-2"):
        cluster.start(name, wait=False)
        wait_until(functools.partial(add, cluster, name), f"{name} is a master")
    cluster.start("tserver-3", wait=False)  # a new server, with an empty directory
    wait_equal(cluster, 180)
    assert ksck(cluster).problems == []
    with cluster.connect() as client:
        assert sorted(client.tables()) == ["altered", "plain"]
        plain, altered = client.table("plain"), client.table("altered")
        assert keys(plain.scan()) == list(range(0, 300, 3))
        assert plain.get({"k": 3})["v"] == -3
        assert keys(plain.scan(at=then)) == list(range(0, 300, 3))
        assert [r["v"] for r in plain.scan(at=then).to_arrow().to_pylist() if r["k"] == 3] == [3]
        left = [k for k in range(0, 300, 3) if not 100 <= k < 200]
        assert keys(altered.scan()) == [*left, 350]
        assert altered.get({"k": 350})["w"] == 2
        assert [r["w"] for r in altered.scan(at=after).to_arrow().to_pylist() if r["k"] == 350] == [
            1
        ]
        with pytest.raises(HistoryGone, match="columns of table 'altered' are not kept"):
            altered.scan(at=before).to_arrow()
        entries = client.journal("events").log("a").read()
        assert [(e.id, e.data) for e in entries] == [(entry, b"one")]
        altered.upsert([{"k": 1, "w": 1}]).raise_for_errors()
        altered.alter().add_column("n", pa.int32(), default=7).commit()
        assert client.table("altered").get({"k": 1}) == {"k": 1, "w": 1, "n": 7}
        filled(client, "new")
        client.drop_table("plain")
        assert sorted(client.tables()) == ["altered", "new"]
    cluster.kill("master-0")
    with cluster.connect() as client:
        client.drop_table("new")
    cluster.start("master-0")


def answered(done):
    """Return the result of a command once every server answers and has opened its replicas."""
    return done if done[0] == 0 else None


def add(cluster, name):
    """Return whether a master was added."""
    try:
        return nyala("master", "add", cluster.address(name), "--masters", cluster.masters)[0] == 0
    except NyalaError:
        return False
