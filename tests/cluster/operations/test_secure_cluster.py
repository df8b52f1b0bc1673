"""A cluster with certificates: users of each role, commands, Spark's variables, restarts."""

import os
import subprocess
import sys

import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import Forbidden, Unauthenticated
from nyala.security import issue
from nyala.security.principal import USER_ROLES, AccessRole
from nyala.testing import MiniCluster

pytestmark = pytest.mark.full

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
ROWS = [{"k": k, "v": str(k)} for k in range(2_000)]


@pytest.fixture(scope="module")
def secured():
    with MiniCluster(secure=True) as made:
        yield made


def command(cluster, *words, **environ):
    return subprocess.run(
        [sys.executable, "-m", "nyala", *words], capture_output=True, text=True, timeout=120,
        env={**os.environ, "NYALA_MASTERS": cluster.masters, **environ}, cwd=cluster.dir,
    )  # fmt: skip


def files_of(cluster, role):
    certs = f"{cluster.dir}/certs"
    return issue.user(certs, f"{cluster.dir}/{role.name}", role.name.lower(), role)


def connected(cluster, role):
    files = files_of(cluster, role)
    return nyala.connect(cluster.masters, ca=files.ca, cert=files.cert, key=files.key)


def create(client, name):
    return client.create_table(name, SCHEMA, primary_key=["k"])


def test_each_role_does_what_it_may_and_no_more(secured):
    with secured.connect() as admin:
        create(admin, "t").upsert(ROWS)
    steps = (
        (AccessRole.READER, lambda c: c.table("t").get({"k": 7})),
        (AccessRole.READER, lambda c: c.table("t").scan().to_arrow()),
        (AccessRole.READER, lambda c: c.sql("select count(*) from t")),
        (AccessRole.WRITER, lambda c: c.table("t").upsert(ROWS[:1])),
        (AccessRole.WRITER, lambda c: c.table("t").upsert(ROWS * 20)),
        (AccessRole.OWNER, lambda c: create(c, "made")),
        (AccessRole.OWNER, lambda c: c.drop_table("made")),
    )
    for role in USER_ROLES:
        with connected(secured, role) as client:
            for least, step in steps:
                if role >= least:
                    step(client)
                    continue
                with pytest.raises(Forbidden, match=f"has the role {role.name.lower()}"):
                    step(client)


def test_commands_work_with_the_variables_and_say_what_is_missing_without(secured):
    good = command(secured, "cluster", "ksck", **secured.environment)
    assert good.returncode == 0, good.stderr
    bad = command(secured, "table", "list")
    assert bad.returncode == 4
    assert "accepts encrypted connections only; give ca, cert and key" in bad.stderr
    half = command(secured, "table", "list", NYALA_CA="/nowhere")
    assert half.returncode == 2
    assert "NYALA_CERT" in half.stderr


def test_connection_without_certificate_is_refused_with_the_way_out(secured):
    code = "import nyala; nyala.connect()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
        env={**os.environ, "NYALA_MASTERS": secured.masters},
    )  # fmt: skip
    assert Unauthenticated.__name__ in done.stderr


def test_cluster_repairs_and_serves_after_kills(secured):
    with secured.connect() as client:
        table = create(client, "kills")
        table.upsert(ROWS)
        for name in ("tserver-1", secured.leader_master()):
            secured.kill(name)
            table.upsert(ROWS[:10])
            secured.start(name)
        assert table.count() == len(ROWS)
        client.drop_table("kills")


def test_server_refuses_the_certificate_of_a_user_and_addresses_without_one(secured, tmp_path):
    files = files_of(secured, AccessRole.ADMIN)
    words = ("master", "run", "--dir", str(tmp_path), "--address")
    user = command(secured, *words, "127.0.0.1:0", **files.variables)
    assert user.returncode == 4
    assert "is not a server of the cluster" in user.stderr
    bare = command(secured, *words, "192.0.2.1:7051")
    assert bare.returncode == 4
    assert "refusing to bind 192.0.2.1:7051 without certificates" in bare.stderr
    every = command(secured, *words, "0.0.0.0:7051", **server_variables(secured))
    assert every.returncode == 2
    assert "--bind 0.0.0.0" in every.stderr
    assert list(tmp_path.iterdir()) == []


def server_variables(cluster):
    certs = f"{cluster.dir}/certs"
    return {
        "NYALA_CA": f"{certs}/ca.crt",
        "NYALA_CERT": f"{certs}/server.crt",
        "NYALA_KEY": f"{certs}/server.key",
    }  # fmt: skip
