"""Replacement of the certificate authority of a real cluster, under load, with the leader master killed."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from nyala.security.authorities import bundle
from nyala.testing import MiniCluster
from tests.waiting import wait_until, within

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])
KEYS = 100


class Load:
    """Upserts and reads of one table, until it is stopped; the first error ends it."""

    def __init__(self, cluster):
        self.rounds, self.error, self._stopped = 0, None, threading.Event()
        self._cluster = cluster
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            with self._cluster.connect() as client:
                table = client.create_table("t", SCHEMA, primary_key=["k"], replicas=3)
                while not self._stopped.is_set():
                    value = self.rounds + 1
                    table.upsert([{"k": k, "v": value} for k in range(KEYS)])
                    assert table.count() == KEYS
                    assert table.get({"k": value % KEYS})["v"] == value
                    with self._cluster.connect() as fresh:
                        assert fresh.table("t").count() == KEYS
                    self.rounds = value
        except BaseException as err:
            self.error = err

    def progress(self):
        """Wait until it has done some work since now."""
        wanted = self.rounds + 3
        wait_until(lambda: self.error or self.rounds >= wanted, "the load goes on")
        assert self.error is None, self.error

    def stop(self):
        self._stopped.set()
        self._thread.join(within(60))
        assert self.error is None, self.error


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(3, 3, secure=True) as made:
        yield made


def run(cluster, *words, env=()):
    return subprocess.run(
        [sys.executable, "-m", "nyala", *words], text=True, capture_output=True,
        timeout=within(120), env={**os.environ, "NYALA_MASTERS": cluster.masters, **dict(env)},
    )  # fmt: skip


def done(cluster, *words, before="", env=()):
    """Return the output of a command, which is repeated while no master leads.

    Args:
        cluster: the cluster.
        words: of the command.
        before: error of the command if one that was not answered in time has had its effect.
        env: of the command.
    """
    found = []

    def good():
        found.append(run(cluster, *words, env=env))
        had_effect = before and before in found[-1].stderr and len(found) > 1
        return found[-1].returncode == 0 or had_effect

    try:
        wait_until(good, f"{' '.join(words)}")
    except AssertionError as err:
        raise AssertionError(f"{err}: {found[-1].stderr}") from None
    return found[-1].stdout + found[-1].stderr


def trusted(cluster, name):
    """Return the authorities that a server trusts, the one that issues first."""
    ca = Path(cluster.data_dir(name), "certs", "ca.crt").read_bytes()
    return [bundle.key_id(c) for c in bundle.parse(ca)]


def test_authority_is_replaced_while_clients_write_and_read_and_the_leader_master_is_killed(
    cluster, tmp_path
):
    (old,) = trusted(cluster, "master-0")
    load = Load(cluster)
    try:
        load.progress()
        refused = run(cluster, "ca", "retire")
        assert "no authority to retire" in refused.stderr
        certs = Path(cluster.data_dir("master-0")).parent / "certs"
        made = run(
            cluster, "cert", "user", "ann", "--dir", str(certs), "--out", str(tmp_path / "ann")
        )
        assert made.returncode == 0, made.stderr
        done(cluster, "ca", "rotate", before="being replaced already")
        killed = cluster.leader_master()
        cluster.kill(killed)
        left = [n for n in cluster.names if n != killed]
        wait_until(
            lambda: (
                all(trusted(cluster, n)[-1] == old for n in left if len(trusted(cluster, n)) == 2)
                and all(len(trusted(cluster, n)) == 2 for n in left)
            ),
            "all servers trust both authorities, and the new one issues",
        )
        load.progress()
        cluster.start(killed)
        wait_until(
            lambda: "no server is behind; next:" in run(cluster, "ca", "show").stderr,
            "every server has a certificate of the new authority",
        )
        new = trusted(cluster, "master-0")[0]
        assert new != old
        shown = json.loads(run(cluster, "ca", "show", "--format", "json").stdout)
        assert [a["state"] for a in shown["authorities"]] == ["issues", "trusted, old"]
        assert (shown["behind"], shown["logins"]) == ([], [])
        assert all(trusted(cluster, n) == [new, old] for n in cluster.names)
        again = cluster.leader_master()
        cluster.kill(again)
        cluster.start(again)
        load.progress()
        refused = run(cluster, "ca", "retire")
        assert "certificates of users that were not renewed: ann (serial number" in refused.stderr
        files = {"NYALA_CA": "ca.crt", "NYALA_CERT": "ann.crt", "NYALA_KEY": "ann.key"}
        ann = {name: str(tmp_path / "ann" / file) for name, file in files.items()}
        done(cluster, "cert", "renew", env=ann)
        again = "no replacement is under way"
        retired = done(cluster, "ca", "retire", before=again)
        assert "is retired" in retired or again in retired
        wait_until(
            lambda: all(trusted(cluster, n) == [new] for n in cluster.names),
            "no server trusts the old one",
        )
        load.progress()
    finally:
        load.stop()
    keys = [Path(cluster.data_dir(f"master-{n}"), "certs") for n in range(3)]
    wait_until(
        lambda: all(sorted(p.name for p in k.glob("*.key")) == ["ca.key"] for k in keys),
        "the key of the old authority is removed",
    )
    for name in cluster.names:  # they start with what they have now
        cluster.stop(name)
    for name in cluster.names:
        cluster.start(name, wait=False)
    cluster.wait_healthy()
    with cluster.connect() as client:
        assert client.table("t").count() == KEYS
    assert run(cluster, "cluster", "ksck").returncode == 0
    for words in (("token", "create"), ("ca", "rotate")):
        assert run(cluster, *words).returncode == 0
