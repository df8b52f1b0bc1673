"""Values of rows, keys, passwords and tokens in what servers show: pages, logs, audit logs, and bundles.

They are planted in a cluster that logs at the most verbose level, and looked for afterwards.
"""

import contextlib
import http.client
import re
import ssl
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

import nyala
from nyala.common.errors import NyalaError
from nyala.testing import MiniCluster, layout
from tests.cluster.support.commands import run
from tests.waiting import wait_until, within

pytestmark = [pytest.mark.full, pytest.mark.timeout(600), pytest.mark.row("A23")]

PASSWORD, GUESS, JWT = "planted-password-71", "planted-guess-83", "planted.token.e30"
CELL, KEY, NEW, WHERE = "planted-cell-17", "planted-key-29", "planted-new-31", "planted-where-37"
ENTRY, PATH, STEP = "planted-entry-41", "planted-path-43", "planted-step-47"
ROW = re.compile(r"href=[\"']?(/[^\"'>\s]*)")
SCHEMA = pa.schema([
    pa.field("k", pa.string(), nullable=False), pa.field("v", pa.string(), nullable=False),
])  # fmt: skip


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(1, 2, secure=True) as made:
        yield made


def request(cluster, server, path, method="GET", body="", **headers):
    """Return the status and text of an answer of a web port, to the administrator."""
    certs = Path(cluster.dir, "certs")
    context = ssl.create_default_context(cafile=str(certs / "ca.crt"))
    context.load_cert_chain(certs / "admin.crt", certs / "admin.key")
    host, port = cluster.web_address(server).split(":")
    link = http.client.HTTPSConnection(host, int(port), context=context, timeout=within(30))
    try:
        link.request(method, path, body, headers)
        answer = link.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        link.close()


def pages_of(cluster, server):
    """Return all pages of a server by path, found by their links, as pages and as JSON."""
    found: dict[str, str] = {}
    waiting = [
        "/",
        "/metrics",
        "/healthz",
        "/log",
        "/rpcz",
        "/scans",
        "/maintenance",
        "/threads",
        "/options",
    ]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        assert len(found) < 1_000, "pages without end"
        status, found[path] = request(cluster, server, path)
        assert status in (200, 404, 503), (path, status)
        waiting += ROW.findall(found[path])
        if "format=" not in path and path.count("/") == 1:
            waiting.append(f"{path}?format=json")
    return found


def logged_in(cluster, user, password, *words, environ=()):
    """Run `nyala login` as a user who has nothing noted."""
    made = layout.load(cluster.dir)
    assert made is not None
    at = ("--login", made.join_addresses[0], "--ca", f"{cluster.dir}/certs/ca.crt")
    kind = words or ("--user", user, "--password-stdin")
    return run(cluster, "login", *at, *kind, answer=f"{password}\n", env=environ)


def use(client):
    """Use each kind of request with planted values, also in ways that are refused."""
    table = client.create_table("shown", SCHEMA, ["k"], replicas=1)
    rows = [{"k": f"{KEY}-{n}", "v": f"{CELL}-{n}"} for n in range(2_000)]
    table.insert(rows).raise_for_errors()
    assert table.insert(rows[:3]).errors.num_rows == 3
    table.upsert([{"k": f"{KEY}-0", "v": NEW}]).raise_for_errors()
    assert table.get({"k": f"{KEY}-1"}) == rows[1]
    assert table.scan(where=f"v = '{WHERE}'").count() == 0
    assert client.sql(f"select count(*) n from shown where v like '{WHERE}%'").to_pylist() == [
        {"n": 0}
    ]
    assert table.update_where(f"v = '{NEW}'", {"v": f"{NEW}-2"}) is not None
    assert table.delete_where(f"k = '{KEY}-2'") is not None
    for wrong in (f"v = '{WHERE}", f"v ~ '{WHERE}'", f"v = {WHERE.replace('-', '_')}"):
        with pytest.raises(NyalaError):
            table.scan(where=wrong).count()
    with pytest.raises((NyalaError, ValueError, TypeError)):
        table.insert([{"k": f"{KEY}-5000", "v": None}]).raise_for_errors()
    with client.transaction(key=f"{PATH}-job") as txn:
        table.upsert([{"k": f"{KEY}-1", "v": f"{CELL}-txn"}], txn=txn)
    journal = client.create_journal("steps", replicas=1)
    journal.set(PATH, STEP.encode())
    with pytest.raises(NyalaError):
        journal.set(PATH, f"{STEP}-2".encode(), expected_version=77)
    assert journal.get(PATH).value == STEP.encode()
    log = journal.log("events")
    log.append(ENTRY.encode())
    assert len(list(log.read())) == 1
    return table


def private_lines(cluster):
    """Return a line of each private key of the cluster's servers and users."""
    found = set()
    for path in Path(cluster.dir).rglob("*"):
        if path.suffix in (".key", ".pem") and path.is_file():
            blocks = path.read_text().split("PRIVATE KEY-----\n")[1:]
            found |= {block.splitlines()[0] for block in blocks if block.strip()}
    assert len(found) > 3
    return found


def test_planted_values_and_secrets_are_in_no_page_log_or_bundle(cluster, tmp_path):
    for name in cluster.names:
        kind = name.partition("-")[0]
        level = run(cluster, kind, "set_log_level", cluster.address(name), "DEBUG")
        assert level.returncode == 0, level.stderr
    token = run(cluster, "token", "create", "--ttl", "1h").stdout.split()[-1]
    assert token.startswith("ny1.")
    assert run(cluster, "user", "add", "ann", "--role", "reader", "--password-stdin",
               answer=f"{PASSWORD}\n").returncode == 0  # fmt: skip
    home = {"XDG_DATA_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    failed = [
        logged_in(cluster, "ann", GUESS, environ=home),
        logged_in(cluster, "", JWT, "--jwt", "-", environ=home),
    ]
    assert all(f.returncode for f in failed)
    assert logged_in(cluster, "ann", PASSWORD, environ=home).returncode == 0
    joined = run(cluster, "tserver", "join", f"{token[:-6]}AAAAAA", "--masters", cluster.masters,
                 "--dir", str(tmp_path / "joins"))  # fmt: skip
    assert joined.returncode
    link = request(cluster, "tserver-0", "/login-links", "POST")[1].strip()
    with cluster.connect() as client:
        table = use(client)
        scan = table.scan(where=f"v <> '{WHERE}'").to_batches()
        next(iter(scan))  # it stays open
        client_errors = [f.stderr + f.stdout for f in (*failed, joined)]
        with nyala.connect(cluster.masters) as other, contextlib.suppress(NyalaError):
            other.table("no-table").count()
        shown = {
            f"{name}{path}": text
            for name in cluster.names
            for path, text in pages_of(cluster, name).items()
        }
    assert sum("/log" in path for path in shown) >= 3
    bundle = str(tmp_path / "bundle.zip")
    assert run(cluster, "diagnose", "bundle", bundle).returncode == 0
    with zipfile.ZipFile(bundle) as archive:
        shown |= {
            f"bundle:{n}": archive.read(n).decode(errors="replace") for n in archive.namelist()
        }
    cluster.kill("tserver-0")
    cluster.start("tserver-0")
    wait_until(lambda: request(cluster, "tserver-0", "/healthz")[0] == 200, "it is healthy")
    logs = [*Path(cluster.dir).rglob("*.log"), *Path(cluster.dir).rglob("audit.log*")]
    shown |= {str(p): p.read_text(errors="replace") for p in logs}
    shown |= {f"error {n}": text for n, text in enumerate(client_errors)}
    assert any(" D nyala." in text for text in shown.values()), "the logs are verbose"
    assert any("shown" in text for text in shown.values()), "names of tables are shown"
    secrets = {PASSWORD, GUESS, JWT, token.split(".")[-1], link.rpartition("=")[2][-20:]}
    values = {CELL, KEY, NEW, WHERE, ENTRY, STEP}
    assert all(len(s) >= 12 for s in secrets)
    found = {
        (where, what)
        for what in secrets | values | private_lines(cluster)
        for where, text in shown.items()
        if what in text
    }
    assert not found
