"""Logins at a real cluster: commands of an administrator and of a user, and what ends a login."""

import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from nyala.testing import MiniCluster, layout
from tests.waiting import wait_until, within

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

PASSWORD, OTHER = "correct horse battery", "staple correct horse"


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(1, 1, secure=True) as made:
        yield made


class User:
    """A user of the machine who has nothing noted: another one than the user who made the cluster."""

    def __init__(self, cluster, home):
        self.cluster, self.home = cluster, home

    def run(self, *words, answer="", **environ):
        known = {"NYALA_MASTERS": self.cluster.masters, "XDG_DATA_HOME": str(self.home)}
        return subprocess.run(
            [sys.executable, "-m", "nyala", *words], cwd=self.home, input=answer, text=True,
            capture_output=True, timeout=within(120),
            env={**os.environ, **known, "TMPDIR": str(self.home), **environ},
        )  # fmt: skip

    def log_in(self, name, *words, password=PASSWORD):
        made = layout.load(self.cluster.dir)
        assert made is not None
        at = ("--login", ",".join(made.join_addresses), "--password-stdin")
        return self.run("login", "--user", name, *at, *words, answer=f"{password}\n")


@pytest.fixture
def user(cluster, tmp_path):
    return User(cluster, tmp_path)


@pytest.fixture
def admin(cluster, tmp_path):
    """Runs commands as the user who made the cluster."""

    def run(*words, answer=""):
        done = subprocess.run(
            [sys.executable, "-m", "nyala", *words], cwd=tmp_path, input=answer, text=True,
            capture_output=True, timeout=within(120),
            env={**os.environ, "NYALA_MASTERS": cluster.masters},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def authority(cluster):
    return f"{cluster.dir}/certs/ca.crt"


def add(admin, name, role="reader"):
    admin("user", "add", name, "--role", role, "--password-stdin", answer=f"{PASSWORD}\n")


def test_user_logs_in_works_and_logs_out(cluster, user, admin):
    add(admin, "ann")
    refused = user.run("table", "list")
    assert refused.returncode != 0
    wrong = user.log_in("ann", "--ca", authority(cluster), password=OTHER)
    assert (wrong.returncode, "password is wrong" in wrong.stderr) == (4, True)
    unknown = user.log_in("ann")
    assert (unknown.returncode, "nothing secret was sent" in unknown.stderr) == (4, True)
    shown = admin("cert", "show", authority(cluster), "--format", "csv")
    fingerprint = next(r.split(",")[1] for r in shown.splitlines() if r.startswith("sha256"))
    assert fingerprint in unknown.stderr
    done = user.log_in("ann", "--fingerprint", fingerprint)
    assert done.returncode == 0, done.stderr
    assert "logged in as reader ann" in done.stderr
    assert user.run("table", "list").returncode == 0
    denied = user.run("journal", "create", "events")
    assert "ann needs a grant of the role owner" in denied.stderr
    assert "user add" not in user.run("user", "list").stdout
    assert "ann,reader,enabled," in admin("user", "list", "--format", "csv")
    assert user.run("logout").returncode == 0
    assert user.run("table", "list").returncode != 0
    texts = [p.read_text(errors="replace") for p in Path(cluster.dir).rglob("*") if is_text(p)]
    assert any("did not log in" in text for text in texts)
    assert not any(word in text for text in texts for word in (PASSWORD, OTHER))


def browse(cluster, path, method="GET", cookies=(), **fields):
    """Return status, cookies and body of a request to the first master's web port."""
    context = ssl.create_default_context(cafile=authority(cluster))
    host, port = cluster.web_address("master-0").split(":")
    link = http.client.HTTPSConnection(host, int(port), context=context, timeout=within(30))
    try:
        link.request(method, path, urlencode(fields), {"cookie": "; ".join(cookies)})
        got = link.getresponse()
        set_cookies = [c.partition(";")[0] for c in got.headers.get_all("set-cookie") or ()]
        return got.status, set_cookies, got.read().decode()
    finally:
        link.close()


def test_browser_logs_in_with_a_password_until_the_account_is_disabled(cluster, admin):
    add(admin, "web")

    def log_in(password):
        status, cookies, page = browse(cluster, "/login")
        assert status == 200
        (value,) = re.findall(r'name="form" value="([^"]+)"', page)
        sent = {"user": "web", "password": password, "form": value}
        return browse(cluster, "/login", "POST", cookies, **sent)

    assert browse(cluster, "/")[0] == 401
    status, _, page = log_in(OTHER)
    assert (status, "password is wrong" in page) == (403, True)
    begun = []

    def right():  # after a failed login the next one may have to wait
        begun.append(log_in(PASSWORD))
        return begun[-1][0] == 303

    wait_until(right, "the login succeeds")
    session = begun[-1][1]
    assert browse(cluster, "/", cookies=session)[0] == 200
    admin("user", "disable", "web")
    wait_until(lambda: browse(cluster, "/", cookies=session)[0] == 401, "the session has ended")
    logs = [p.read_text() for p in Path(cluster.dir).rglob("audit.log")]
    assert any('"web"' in text and "Login" in text and "127.0.0.1" in text for text in logs)


def is_text(path):
    return path.is_file() and (path.suffix == ".log" or path.name.startswith("audit"))


@pytest.mark.parametrize(
    "words", [("role", "bob", "writer"), ("disable", "bob"), ("remove", "bob")], ids=lambda w: w[0]
)
def test_change_of_a_user_ends_the_login_and_the_next_has_the_new_rights(
    cluster, user, admin, words
):
    add(admin, "bob")
    try:
        assert user.log_in("bob", "--ca", authority(cluster)).returncode == 0
        assert user.run("table", "list").returncode == 0
        admin("user", *words)
        wait_until(lambda: user.run("table", "list").returncode != 0, "the login has ended")
        again = user.log_in("bob")  # the authority is noted
        if words[0] == "role":
            assert "logged in as writer bob" in again.stderr
            assert user.run("table", "list").returncode == 0
        else:
            assert again.returncode == 4, again.stderr
    finally:
        if words[0] != "remove":
            admin("user", "remove", "bob")


def test_user_changes_the_password_and_the_old_one_is_wrong(cluster, user, admin):
    add(admin, "eve")
    trust = ("--ca", authority(cluster))
    weak = user.log_in("eve", *trust, "--change-password", password=f"{PASSWORD}\nshort")
    assert (weak.returncode, "at least 12 are required" in weak.stderr) == (2, True)
    changed = user.log_in("eve", *trust, "--change-password", password=f"{PASSWORD}\n{OTHER}")
    assert changed.returncode == 0, changed.stderr
    assert user.run("table", "list").returncode == 0
    assert user.log_in("eve", *trust).returncode == 4
    assert user.log_in("eve", *trust, password=OTHER).returncode == 0


def test_token_of_an_issuer_logs_a_user_in(tmp_path, monkeypatch):
    key = ec.generate_private_key(ec.SECP256R1())
    public = jwt.get_algorithm_by_name("ES256").to_jwk(key.public_key(), as_dict=True)
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [{**public, "kid": "k"}]}))
    issuers = tmp_path / "issuers.toml"
    issuers.write_text('[[issuer]]\nissuer = "idp"\naudience = "nyala"\njwks = "keys.json"\n')
    claims = {"iss": "idp", "aud": "nyala", "sub": "dora", "exp": time.time() + 600}
    token = jwt.encode(claims, key, "ES256", headers={"kid": "k"})
    monkeypatch.setenv("NYALA_JWT_ISSUERS", str(issuers))
    with MiniCluster(1, 1, secure=True) as cluster:
        user = User(cluster, tmp_path)
        added = subprocess.run(
            [sys.executable, "-m", "nyala", "user", "add", "dora", "--without-password"],
            env={**os.environ, "NYALA_MASTERS": cluster.masters}, capture_output=True, text=True,
            timeout=within(120),
        )  # fmt: skip
        assert added.returncode == 0, added.stderr
        made = layout.load(cluster.dir)
        assert made is not None
        words = (
            "login",
            "--jwt",
            "-",
            "--ca",
            authority(cluster),
            "--login",
            made.join_addresses[0],
        )
        done = user.run(*words, answer=f"{token}\n")
        assert done.returncode == 0, done.stderr
        assert "logged in as reader dora" in done.stderr
        assert token not in done.stderr
        assert user.run("table", "list").returncode == 0
        assert user.run(*words, answer=f"{token[:-6]}AAAAAA\n").returncode == 4
        logs = [p.read_text(errors="replace") for p in Path(cluster.dir).rglob("*.log")]
        assert not any(token in text for text in logs)
