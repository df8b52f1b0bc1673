"""Keys of transactions on real servers: the first user of a key owns it, also after a change of leader."""

import subprocess
import sys

import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import Forbidden
from nyala.operate import run
from nyala.security import issue
from nyala.security.principal import AccessRole
from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.waiting import within

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture(scope="module")
def secured():
    with MiniCluster(3, 1, secure=True) as made:
        yield made


def connected(cluster, user, role=AccessRole.WRITER):
    files = issue.user(f"{cluster.dir}/certs", f"{cluster.dir}/{user}", user, role)
    return nyala.connect(cluster.masters, ca=files.ca, cert=files.cert, key=files.key)


def command(cluster, *words):
    """Run a command as the administrator."""
    done = subprocess.run(
        [sys.executable, "-m", "nyala", *words, "--masters", cluster.masters],
        capture_output=True, text=True, timeout=within(120), check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def leader_of(cluster):
    listed = run.ask_leader(cluster.masters, methods.LIST_SERVERS, pb.ListServersRequest()).servers
    address = next(m.address for m in listed if m.leader)
    return f"master-{cluster.masters.split(',').index(address)}"


def load(client, key, row):
    """Write one row in a transaction with a key; return whether the key was used before."""
    with client.transaction(key=key) as txn:
        client.table("t").upsert([row], txn=txn)
    return txn.committed_before


def epoch(number):
    return nyala.StreamKey("events", "q", number)


@pytest.mark.row("A23")
def test_job_and_stream_of_a_user_are_refused_to_another_one(secured):
    with (
        connected(secured, "root", AccessRole.ADMIN) as root,
        connected(secured, "ann") as ann,
        connected(secured, "bob") as bob,
    ):
        root.create_table("t", SCHEMA, primary_key=["k"], replicas=1)
        assert not load(ann, "load", {"k": 1, "v": "ann"})
        assert not load(ann, epoch(0), {"k": 2, "v": "ann"})
        for key in ("load", epoch(0), epoch(1)):
            with pytest.raises(nyala.TransactionDenied, match="of another user"):
                load(bob, key, {"k": 3, "v": "bob"})
        with pytest.raises(Forbidden, match="of another user"):
            bob.find_key("load")
        assert ann.table("t").get({"k": 3}) is None
        leader = leader_of(secured)
        secured.kill(leader)
        try:
            with pytest.raises(nyala.TransactionDenied, match="of another user"):
                load(bob, "load", {"k": 3, "v": "bob"})
            assert load(ann, "load", {"k": 1, "v": "again"})
        finally:
            secured.start(leader)
        assert "ann" in command(secured, "txn", "key", "events")
        assert "belongs to bob" in command(secured, "txn", "owner", "events", "bob")
        assert not load(bob, epoch(1), {"k": 3, "v": "bob"})
        with pytest.raises(nyala.TransactionDenied, match="of another user"):
            load(ann, epoch(2), {"k": 4, "v": "ann"})
        rows = ann.table("t").scan(order=True).to_arrow().to_pylist()
        assert [r["v"] for r in rows] == ["ann", "ann", "bob"]
