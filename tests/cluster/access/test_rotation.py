"""Replacement of the certificate authority of a real cluster, under load, with the leader master killed."""

import contextlib
import json
import time
from pathlib import Path

import pytest

import nyala
from nyala.testing import MiniCluster
from nyala.wire.connection import EXPIRED_S
from tests.cluster.support.commands import run
from tests.cluster.support.rotating import KEYS, Load, done, trusted
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

ANN = {"ca": "ca.crt", "cert": "ann.crt", "key": "ann.key"}


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(3, 3, secure=True) as made:
        yield made


def test_authority_is_replaced_while_clients_write_and_read_and_the_leader_master_is_killed(
    cluster, tmp_path
):
    (old,) = trusted(cluster, "master-0")
    load, opened = Load(cluster), contextlib.ExitStack()
    try:
        load.progress()
        refused = run(cluster, "ca", "retire")
        assert "no authority to retire" in refused.stderr
        certs = Path(cluster.data_dir("master-0")).parent / "certs"
        made = run(
            cluster, "cert", "user", "ann", "--dir", str(certs), "--out", str(tmp_path / "ann")
        )
        assert made.returncode == 0, made.stderr
        own = {n: str(tmp_path / "ann" / f) for n, f in ANN.items()}
        ann_s = nyala.connect(cluster.masters, ca=own["ca"], cert=own["cert"], key=own["key"])
        long_lived = opened.enter_context(ann_s)
        assert long_lived.table("t").count() == KEYS
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
        ann = {f"NYALA_{name.upper()}": file for name, file in own.items()}
        done(cluster, "cert", "renew", env=ann)
        again = "no replacement is under way"
        retired = done(cluster, "ca", "retire", before=again)
        assert "is retired" in retired or again in retired
        wait_until(
            lambda: all(trusted(cluster, n) == [new] for n in cluster.names),
            "no server trusts the old one",
        )
        retired_s = time.monotonic()
        for _ in range(2):  # before and after open connections of the old authority were closed
            assert long_lived.table("t").count() == KEYS, "its files were replaced, and it runs on"
            assert long_lived.tables() == ["t"]
            load.progress()
            wait_until(
                lambda: time.monotonic() > retired_s + EXPIRED_S, "the connections are closed"
            )
    finally:
        opened.close()
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
