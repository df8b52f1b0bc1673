"""The leader master killed at each step of a replacement of the authority, of its retirement and its abort.

The command is run again, and ends: nothing is left of a replacement that was not written, and one that was
written is continued. Clients, servers and sessions of browsers are not interrupted.
"""

import contextlib
import http.client
import json
import os
import re
import ssl
import subprocess
import threading
from pathlib import Path
from urllib.parse import urlencode

import pytest

from nyala.security.authorities import bundle
from nyala.security.identity import identity_of_pem
from nyala.testing import MiniCluster
from tests.cluster.support.commands import run
from tests.cluster.support.rotating import KEYS, Load, done, trusted
from tests.waiting import wait_until, within

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

PASSWORD = "correct horse battery"
MASTERS = ("master-0", "master-1", "master-2")


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(3, 3, secure=True) as made:
        yield made


@pytest.fixture(scope="module")
def load(cluster):
    made = Load(cluster)
    made.progress()
    yield made
    made.stop()


class Browser:
    """A session of a browser at a tablet server."""

    def __init__(self, cluster):
        self._cluster, self._cookies = cluster, ()
        page, cookies = self._ask("/login")[1:]
        (form,) = re.findall(r'name="form" value="([^"]+)"', page)
        sent = {"user": "web", "password": PASSWORD, "form": form}
        status, _, self._cookies = self._ask("/login", "POST", cookies, **sent)
        assert status == 303

    def _ask(self, path, method="GET", cookies=(), **fields):
        context = ssl.create_default_context(cafile=f"{self._cluster.dir}/certs/ca.crt")
        host, port = self._cluster.web_address("tserver-0").split(":")
        link = http.client.HTTPSConnection(host, int(port), context=context, timeout=within(30))
        try:
            link.request(method, path, urlencode(fields), {"cookie": "; ".join(cookies)})
            got = link.getresponse()
            set_cookies = [c.partition(";")[0] for c in got.headers.get_all("set-cookie") or ()]
            return got.status, got.read().decode(), set_cookies
        finally:
            link.close()

    @property
    def logged_in(self):
        return self._ask("/", cookies=self._cookies)[0] == 200


@pytest.fixture(scope="module")
def browser(cluster):
    add = ("user", "add", "web", "--role", "reader", "--password-stdin")
    assert run(cluster, *add, answer=f"{PASSWORD}\n").returncode == 0
    return Browser(cluster)


@contextlib.contextmanager
def read_only(folder):
    """Mount a folder over itself, read-only."""
    mounted = ["mount", "--bind", folder, folder], ["mount", "-o", "remount,bind,ro", folder]
    if os.geteuid() != 0 or any(subprocess.run(m, check=False).returncode for m in mounted):
        pytest.skip("a folder that is read-only for root needs the right to mount one")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def certs(cluster, name):
    return Path(cluster.data_dir(name), "certs")


def keys_of(cluster, *names):
    """Return the names of the files of authorities' keys that masters have."""
    return {p.name for name in names for p in certs(cluster, name).glob("ca*.key")}


def noted(cluster, name, event, method):
    """Return how many lines of an event of a method the audit log of a server has."""
    path = Path(cluster.data_dir(name), "audit", "audit.log")
    if not path.exists():
        return 0
    lines = [json.loads(x) for x in path.read_text().splitlines() if x.endswith("}")]
    return sum(x["event"] == event and x["method"].endswith(f"/{method}") for x in lines)


def issuers(cluster):
    """Return the key ids of the authorities of the servers' certificates."""
    pems = [(certs(cluster, n) / "server.pem").read_bytes() for n in cluster.names]
    return {identity_of_pem(pem).authority for pem in pems}


def others(leader):
    return [n for n in MASTERS if n != leader]


def line(event, method):
    """Return the moment at which the audit log of the leader has a further line of an event of a method."""

    def reached(cluster, leader, before):
        return noted(cluster, leader, event, method) > before[event]

    return reached


def key_at_leader(cluster, leader, before):
    return len(keys_of(cluster, leader)) > 1


def key_at_another(cluster, leader, before):
    return len(keys_of(cluster, *others(leader))) > 1


def count_of_trusted(wanted):
    def reached(cluster, leader, before):
        return any(len(trusted(cluster, n)) == wanted for n in cluster.names)

    return reached


def new_one_issues(cluster, leader, before):
    return any(trusted(cluster, n)[0] != before["old"] for n in cluster.names)


def first_is_renewed(cluster, leader, before):
    return issuers(cluster) != {before["old"]}


def killed_at(cluster, moment, method, *words):
    """Run a command, kill the leader master at a moment, and start it again; return the old authority.

    Args:
        cluster: the cluster.
        moment: returns whether it is reached, of the cluster, its leader, and what was before the command.
        method: of the masters that the command calls.
        words: of the command.
    """
    leader = cluster.leader_master()
    before = {e: noted(cluster, leader, e, method) for e in ("call", "result")}
    before["old"] = trusted(cluster, "tserver-0")[0]
    command = threading.Thread(target=run, args=(cluster, *words), daemon=True)
    command.start()
    wait_until(lambda: moment(cluster, leader, before), "the moment", poll_s=0.001)
    cluster.kill(leader)
    command.join(within(120))
    assert not command.is_alive()
    cluster.start(leader)
    return before["old"]


def all_trust(cluster, number):
    return all(len(trusted(cluster, n)) == number for n in cluster.names)


def all_issued_by(cluster, wanted):
    wait_until(lambda: issuers(cluster) == {wanted}, "servers have certificates of it")


def replaced(cluster, old):
    """Go on with a replacement that was begun until the old authority is retired."""
    wait_until(
        lambda: "nobody is behind; next: nyala ca retire" in shown(cluster), "no server is behind"
    )
    again = "no replacement is under way"
    done(cluster, "ca", "retire", before=again)
    settled(cluster)
    assert trusted(cluster, "tserver-0")[0] != old


def shown(cluster):
    """Return what `nyala ca show` prints once the user of the test has renewed the own certificate."""
    run(cluster, "cert", "renew")
    return run(cluster, "ca", "show").stderr


def settled(cluster):
    """Wait until all servers trust one authority, masters have its key alone, and certificates are of it."""
    wait_until(lambda: all_trust(cluster, 1), "one authority is trusted")
    for path in (p for name in MASTERS for p in certs(cluster, name).glob("ca-*.key")):
        with contextlib.suppress(FileNotFoundError):
            os.utime(path, (0, 0))  # of a replacement that was never written, long ago
    wait_until(lambda: keys_of(cluster, *MASTERS) == {"ca.key"}, "masters have one key each")
    (name,) = {trusted(cluster, n)[0] for n in cluster.names}
    all_issued_by(cluster, name)
    ids = {
        bundle.key_id(c)
        for n in MASTERS
        for c in bundle.parse((certs(cluster, n) / "ca.crt").read_bytes())
    }
    assert ids == {name}


@pytest.mark.parametrize(
    "moment",
    [
        line("call", "RotateAuthority"),
        key_at_leader,
        key_at_another,
        line("result", "RotateAuthority"),
        count_of_trusted(2),
        new_one_issues,
        first_is_renewed,
    ],
    ids=["asked", "key made", "key sent", "written", "trusted", "issues", "renewed"],
)
def test_replacement_whose_leader_master_is_killed_goes_on(cluster, load, browser, moment):
    old = killed_at(cluster, moment, "RotateAuthority", "ca", "rotate")
    load.progress()
    done(cluster, "ca", "rotate", before="being replaced already")
    assert browser.logged_in
    replaced(cluster, old)
    load.progress()
    assert browser.logged_in


@pytest.mark.parametrize(
    "moment",
    [
        line("call", "RetireAuthority"),
        line("result", "RetireAuthority"),
        count_of_trusted(1),
    ],
    ids=["asked", "written", "not trusted"],
)
def test_retirement_whose_leader_master_is_killed_goes_on(cluster, load, browser, moment):
    old = trusted(cluster, "tserver-0")[0]
    done(cluster, "ca", "rotate", before="being replaced already")
    wait_until(lambda: "nobody is behind; next: nyala ca retire" in shown(cluster), "it issues")
    killed_at(cluster, moment, "RetireAuthority", "ca", "retire")
    again = "no replacement is under way"
    done(cluster, "ca", "retire", before=again)
    settled(cluster)
    assert trusted(cluster, "tserver-0")[0] != old
    load.progress()
    assert browser.logged_in


@pytest.mark.parametrize(
    "moment",
    [line("call", "AbortAuthority"), line("result", "AbortAuthority"), count_of_trusted(1)],
    ids=["asked", "written", "not trusted"],
)
def test_abort_whose_leader_master_is_killed_goes_on(cluster, load, browser, moment):
    """A tablet server that cannot write its `ca.crt` keeps the new authority from issuing."""
    (old,) = {trusted(cluster, n)[0] for n in cluster.names}
    with read_only(certs(cluster, "tserver-2")):
        done(cluster, "ca", "rotate", before="being replaced already")
        able = [n for n in cluster.names if n != "tserver-2"]
        wait_until(lambda: all(len(trusted(cluster, n)) == 2 for n in able), "they trust both")
        killed_at(cluster, moment, "AbortAuthority", "ca", "rotate", "--abort")
        done(cluster, "ca", "rotate", "--abort", before="there is no replacement to abort")
    settled(cluster)
    assert trusted(cluster, "tserver-0") == [old]
    load.progress()
    assert browser.logged_in
    with cluster.connect() as client:
        assert client.table("t").count() == KEYS
