"""Servers that join with a token, renew their certificates, and are locked out: real processes."""

import pyarrow as pa
import pytest

import nyala
from nyala.security.describe import describe
from nyala.security.files import joined_files
from tests.cluster.support.joining import JoiningCluster
from tests.waiting import wait_until

pytestmark = pytest.mark.full

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
ROWS = [{"k": k, "v": str(k)} for k in range(1_000)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("joining")
    with JoiningCluster(folder, "server_certificate_s=120", "tserver_unresponsive_ms=3000") as made:
        yield made


def connected(cluster):
    files = cluster.admin
    return nyala.connect(cluster.address, ca=files.ca, cert=files.cert, key=files.key)


def described(cluster, name):
    files = joined_files(str(cluster.folder / name))
    assert files is not None
    return describe(files.cert)


def serial(cluster, name):
    return described(cluster, name)["serial"]


def uuid(cluster, name):
    return described(cluster, name)["holder"].removeprefix("tserver-")


def wait_for(cluster, name):
    wait_until(lambda: joined_files(str(cluster.folder / name)), f"{name} has joined")
    wait_until(lambda: is_alive(cluster, name), f"{name} reports")


def is_alive(cluster, name):
    return cluster.states().get(uuid(cluster, name)) == "ALIVE"


@pytest.fixture(scope="module")
def joined(cluster):
    """Three tablet servers that joined with one token."""
    token = cluster.token("--role", "tserver", "--ttl", "1h", "--uses", "3")
    names = ["t0", "t1", "t2"]
    for name in names:
        cluster.spawn(name, cluster.join_words(name, token), {})
    for name in names:
        wait_for(cluster, name)
    again = cluster.run(*cluster.join_words("t3", token), variables={})
    assert again.returncode == 4
    assert "was used for 3 servers already" in again.stderr
    return names


def test_tables_work_on_servers_that_joined(cluster, joined):
    with connected(cluster) as client:
        table = client.create_table("t", SCHEMA, primary_key=["k"])
        table.upsert(ROWS)
        assert table.count() == len(ROWS)
    assert cluster.run("cluster", "ksck").returncode == 0


def test_tokens_that_are_revoked_or_of_another_role_let_nobody_in(cluster):
    token = cluster.token("--role", "tserver")
    assert cluster.run("token", "revoke", token.split(".")[2]).returncode == 0
    refused = cluster.run(*cluster.join_words("t4", token), variables={})
    assert refused.returncode == 4
    assert "was revoked" in refused.stderr
    master = cluster.token("--role", "master")
    refused = cluster.run(*cluster.join_words("t5", master), variables={})
    assert refused.returncode == 4
    assert "is for a master, not for a tserver" in refused.stderr
    wrong = ".".join([*token.split(".")[:3], "0" * 64])
    refused = cluster.run(*cluster.join_words("t6", wrong), variables={})
    assert "not known to this cluster" in refused.stderr
    assert not any((cluster.folder / t / "certs/server.pem").exists() for t in ("t4", "t5", "t6"))


def test_used_token_is_refused_after_the_master_was_started_again(cluster):
    token = cluster.token("--role", "tserver", "--uses", "1")
    cluster.spawn("t7", cluster.join_words("t7", token), {})
    wait_for(cluster, "t7")
    cluster.stop("t7")
    cluster.stop("master")
    cluster.start_master()
    wait_until(lambda: cluster.run("token", "list").returncode == 0, "the master leads again")
    refused = cluster.run(*cluster.join_words("t8", token), variables={})
    assert "was used for 1 server already" in refused.stderr


def test_certificate_is_renewed_without_a_restart_and_without_errors(cluster, joined):
    wait_until(lambda: all(is_alive(cluster, n) for n in joined), "all report")
    before = serial(cluster, "t0")
    with connected(cluster) as client:
        table = client.create_table("renewed", SCHEMA, primary_key=["k"])

        def renewed():
            table.upsert(ROWS[:10])
            return serial(cluster, "t0") != before

        wait_until(renewed, "the certificate was renewed")
        table.upsert(ROWS)
        assert table.count() == len(ROWS)
    assert "the certificate was renewed" in cluster.log("t0")


def test_revoked_server_is_locked_out_and_the_others_serve(cluster, joined):
    name = f"tserver-{uuid(cluster, 't2')}"
    done = cluster.run("cert", "revoke", name)
    assert done.returncode == 0, done.stderr
    assert name.removeprefix("tserver-") in cluster.run("cert", "revoked").stdout
    wait_until(lambda: not is_alive(cluster, "t2"), "it reports no longer")
    wait_until(lambda: "was revoked" in cluster.log("t2"), "it was told why")
    with connected(cluster) as client:
        table = client.table("t")
        table.upsert(ROWS[:10])
        assert table.count() == len(ROWS)
    assert cluster.processes["t2"].poll() is None, "it runs, and nobody listens to it"
