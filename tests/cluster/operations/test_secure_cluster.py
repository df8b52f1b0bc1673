"""A cluster with certificates: users of each role, commands, Spark's variables, restarts."""

import json
import os
import pickle
import socket
import ssl
import stat
import subprocess
import sys
import urllib.error
import urllib.request

import pyarrow as pa
import pytest

import nyala
from nyala.common import addresses
from nyala.common.errors import Forbidden, Unauthenticated
from nyala.security import issue, known
from nyala.security.principal import USER_ROLES, AccessRole
from nyala.testing import MiniCluster, layout, ram_ensemble, ram_status
from nyala.testing.forkserver import ForkServer

pytestmark = pytest.mark.full

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
ROWS = [{"k": k, "v": str(k)} for k in range(2_000)]


@pytest.fixture(scope="module")
def secured():
    with MiniCluster(secure=True) as made:
        yield made
    assert known.noted(made.masters.split(",")) is None


@pytest.mark.timeout(300)
def test_cluster_of_up_is_private_and_found_and_says_when_it_is_not(tmp_path, free_base):
    """Abuse case 30: files of a start with umask 0, certificates, secured folders of earlier versions."""
    folder, base = (
        tmp_path / "data",
        ("--masters", "1", "--tservers", "1", "--base-port", free_base),
    )
    environ = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "home")}

    def cli(*words):
        return subprocess.run(
            [sys.executable, "-m", "nyala", *words], capture_output=True, text=True, timeout=200, umask=0,
            env=environ, cwd=tmp_path,
        )  # fmt: skip

    own = ("--dir", str(folder))
    try:
        open_to_all = cli("up", *own, *base, "--insecure")
        assert open_to_all.returncode == 0, open_to_all.stderr
        assert "WARNING: this cluster has no certificates" in open_to_all.stderr
        assert "http://127.0.0.1" in open_to_all.stdout
        again = cli("up", *own)  # it stays as it runs
        assert "WARNING" in again.stderr
        cli("down", *own)
        secured = cli("up", *own)
        assert secured.returncode == 0, secured.stderr
        assert "without certificates, which gets them now" in secured.stderr
        assert "/login?token=" in secured.stdout
        modes = {stat.S_IMODE(p.stat().st_mode) for p in folder.rglob("*") if p.is_file()}
        assert modes == {0o600}
        folders = {
            stat.S_IMODE(p.stat().st_mode) for p in (folder, *folder.rglob("*")) if p.is_dir()
        }
        assert folders == {0o700}
        made = layout.load(str(folder))
        assert made is not None
        masters = made.masters
        for words in (("status", *own), ("cluster", "ksck", "--masters", masters)):
            done = cli(*words)
            assert done.returncode == 0, done.stderr
        refused = cli("up", *own, "--insecure")
        assert (refused.returncode, "--insecure (it has certificates)" in refused.stderr) == (
            2,
            True,
        )
    finally:
        cli("down", *own, "--delete-data")
    assert list((tmp_path / "home" / "nyala" / "credentials").iterdir()) == []


@pytest.fixture
def free_base():
    """A port whose neighbours are free, as text."""
    for base in range(27_050, 30_000, 350):
        if not layout.ports_in_use(
            f"127.0.0.1:{base + k + d}" for k in (0, 1) for d in (0, 1000, 2000)
        ):
            return str(base)
    raise AssertionError("no free ports")


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
                with pytest.raises(
                    Forbidden, match=f"has the role {role.name.lower()}|needs a grant|has no grant"
                ):
                    step(client)


def without_notes(folder):
    """Return the environment of a user for whom no credentials are noted."""
    return {"HOME": str(folder), "XDG_DATA_HOME": str(folder / "data"), "TMPDIR": str(folder)}


SCRIPT = """
import pickle, sys, nyala
with nyala.connect() as client:
    print(client.sql("select count(*) from shared").to_pylist())
token = pickle.loads(bytes.fromhex(sys.argv[1]))
print(sum(batch.num_rows for batch in token.to_batches()))
"""


@pytest.mark.parametrize("one", [True, False], ids=["one master", "all masters"])
def test_any_process_of_the_user_finds_the_credentials(secured, tmp_path, one):
    """Connecting, commands, SQL, and scan tokens that arrive without a client."""
    masters = secured.masters.partition(",")[0] if one else secured.masters
    with secured.connect() as admin:
        create(admin, "shared").upsert(ROWS)
        (token,) = admin.table("shared").scan().tokens()
    environ = {**os.environ, "NYALA_MASTERS": masters}
    read = subprocess.run(
        [sys.executable, "-c", SCRIPT, pickle.dumps(token).hex()],
        capture_output=True, text=True, timeout=120, cwd="/", env=environ,
    )  # fmt: skip
    assert read.stdout.split() == ["[{'count_star()':", f"{len(ROWS)}}}]", str(len(ROWS))], read
    for words in (("cluster", "ksck"), ("sql", "select * from shared limit 1"), ("web",)):
        done = command(secured, *words, NYALA_MASTERS=masters)
        assert done.returncode == 0, done.stderr
    with secured.connect() as admin:
        admin.drop_table("shared")


def test_commands_that_call_servers_directly_find_the_credentials(secured, tmp_path):
    with secured.connect() as admin:
        tablet = create(admin, "direct").tablets()[0]
    done = command(secured, "tablet", "survivors", tablet.id)
    assert done.returncode == 0, done.stderr
    admin_of = ("tablet", "unsafe_change_config", tablet.id, tablet.leader, "x", "--dry-run")
    assert "encrypted" not in command(secured, *admin_of).stderr
    with secured.connect() as admin:
        admin.drop_table("direct")


@pytest.mark.parametrize("port", ["address", "web_address"])
def test_ports_for_clients_accept_tls_1_3_only(secured, port):
    files = secured.environment

    def version(at_most):
        context = ssl.create_default_context(cafile=files["NYALA_CA"])
        context.load_cert_chain(files["NYALA_CERT"], files["NYALA_KEY"])
        context.maximum_version = at_most
        host, number = addresses.parse(getattr(secured, port)("tserver-0"))
        with (
            socket.create_connection((host, number), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname=host) as made,
        ):
            return made.version()

    assert version(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
    with pytest.raises(OSError):
        version(ssl.TLSVersion.TLSv1_2)


def test_link_of_a_server_is_good_for_one_login(secured):
    done = command(secured, "web", "--format", "json")
    assert done.returncode == 0, done.stderr
    links = {row["address"]: row["link"] for row in json.loads(done.stdout)}
    assert len(links) == len(secured.names)
    context = ssl.create_default_context(cafile=secured.environment["NYALA_CA"])
    jar = urllib.request.HTTPCookieProcessor()
    browser = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), jar)
    url, _, secret = links[secured.address("tserver-0")].partition("?")
    with browser.open(f"{url}?{secret}", timeout=60) as form:
        assert "Log in" in form.read().decode()
    with browser.open(url, secret.encode(), timeout=60) as page:
        assert "tserver" in page.read().decode()
    with browser.open(url.replace("/login", "/tablets"), timeout=60) as page:
        assert page.status == 200
    with pytest.raises(urllib.error.HTTPError, match="403"):
        browser.open(url, secret.encode(), timeout=60)


def test_commands_work_with_the_variables_and_say_what_is_missing_without(secured, tmp_path):
    nothing = without_notes(tmp_path)
    good = command(secured, "cluster", "ksck", **nothing, **secured.environment)
    assert good.returncode == 0, good.stderr
    bad = command(secured, "table", "list", **nothing)
    assert bad.returncode == 4
    assert "accepts encrypted connections only; give ca, cert and key" in bad.stderr
    assert f"None are noted for this user in {tmp_path}/data/nyala/credentials" in bad.stderr
    half = command(secured, "table", "list", NYALA_CA="/nowhere")
    assert half.returncode == 2
    assert "NYALA_CERT" in half.stderr


def test_connection_without_certificate_is_refused_with_the_way_out(secured, tmp_path):
    code = "import nyala; nyala.connect()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
        env={**os.environ, "NYALA_MASTERS": secured.masters, **without_notes(tmp_path)},
    )  # fmt: skip
    assert Unauthenticated.__name__ in done.stderr


def test_ensemble_beside_a_secure_cluster_has_its_certificates(secured):
    cluster = layout.load(secured.dir)
    assert cluster is not None
    ensemble = ram_ensemble.plan(cluster, 1, 1)
    with ForkServer(bound=True) as parent:
        try:
            ram_ensemble.start(ensemble, parent, bound=True)
            assert ram_status.read_state(ensemble).leader is not None
            done = command(secured, "ram", "servers")
            assert (done.returncode, "UP" in done.stdout) == (0, True), done
        finally:
            ram_ensemble.stop(ensemble)


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
