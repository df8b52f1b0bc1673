"""The first user of a key of transactions, or of a client id, owns it: on real servers, with failovers."""

import subprocess
import sys

import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import Forbidden, InvalidArgument
from nyala.operate import run
from nyala.security.principal import AccessRole
from nyala.testing import MiniCluster
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.cluster.support.commands import connected
from tests.waiting import within

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture(scope="module")
def secured():
    with MiniCluster(3, 3, secure=True) as made:
        yield made


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


@pytest.mark.row("A23")
def test_client_id_of_a_user_gives_another_one_no_part_in_his_sessions(secured):
    """Abuse case 19: a forged client id, to learn results, or to have writes of its owner count as done."""

    def write(user, row):
        with connected(secured, user, client_id=b"a" * 16) as client:
            return client.table("own").insert([row])

    def check():
        assert not write("ann", {"k": 1, "v": "ann"}).errors, "the same write, sent again"
        with pytest.raises(InvalidArgument, match="other bytes"):
            write("bob", {"k": 1, "v": "ann"})  # hers, of which he learns nothing
        assert not write("bob", {"k": 2, "v": "bob"}).errors, "the same write, sent again"

    with connected(secured, "root", AccessRole.ADMIN) as root:
        table = root.create_table("own", SCHEMA, primary_key=["k"], replicas=3)
        write("bob", {"k": 2, "v": "bob"}).raise_for_errors()  # before ann, under her id
        write("ann", {"k": 1, "v": "ann"}).raise_for_errors()
        check()
        for name in ("tserver-0", "tserver-1", "tserver-2"):  # one of them leads
            secured.kill(name)
            try:
                check()
            finally:
                secured.start(name)
        check()
        rows = table.scan(order=True).to_arrow().to_pylist()
        assert rows == [{"k": 1, "v": "ann"}, {"k": 2, "v": "bob"}]
